#!/usr/bin/env bash
# `ch_sink init --apply` for every stream of a folder, again until its topic holds change events (three minutes).
# Usage: init_tables.sh FOLDER
set -euo pipefail
for stream in "$1"/*.yaml; do
  until=$((SECONDS + 180))
  until said=$(ch_sink init "$stream" --apply 2>&1); do
    if ((SECONDS > until)); then
      printf '%s: %s\n' "$stream" "$said" >&2
      exit 1
    fi
    sleep 2
  done
  printf '%s\n%s\n' "$stream" "$said"
done
