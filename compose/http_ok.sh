#!/usr/bin/env bash
# Health check with nothing but bash: exits 0 when HOST PORT PATH answers with status 200.
# Usage: http_ok.sh localhost 8083 /connectors
set -euo pipefail
exec 3<>"/dev/tcp/$1/$2"
printf 'GET %s HTTP/1.0\r\nHost: %s\r\n\r\n' "$3" "$1" >&3
IFS= read -r -t 8 status <&3
[[ $status == HTTP/1.?" 200"* ]]
