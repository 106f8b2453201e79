#!/usr/bin/env bash
# Makes the virtual environment and installs the locked packages and this project into it.
# Usage: make_venv.sh FOLDER
set -euo pipefail
venv=$1
say() { printf '%s\n' "$*" >&2; }

recent() { # whether this command is a Python of 3.11 or newer
  command -v "$1" >/dev/null 2>&1 && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

complete() { # whether it can make virtual environments
  "$1" -c 'import ensurepip, venv' 2>/dev/null
}

find_python() {
  local name lacking=""
  for name in ${PYTHON:-} python3.13 python3.12 python3.11 python3 python; do
    recent "$name" || continue
    if complete "$name"; then
      command -v "$name"
      return
    fi
    lacking=${lacking:-$(command -v "$name")}
  done
  if [ -n "$lacking" ]; then
    say "$lacking cannot make virtual environments: its ensurepip module is missing. On Debian or Ubuntu: apt-get install python$(version "$lacking")-venv"
  else
    say "ch_sink needs Python 3.11 or newer; none was found as python3.13, python3.12, python3.11 or python3. Install one, or name it: make PYTHON=/path/to/python3 ..."
  fi
  exit 1
}

version() {
  "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'
}

if ! { [ -x "$venv/bin/python" ] && recent "$venv/bin/python"; }; then
  python=$(find_python)
  say "Making $venv with $python (Python $(version "$python"))"
  rm -rf "$venv"
  "$python" -m venv "$venv"
fi

say "Installing the packages of requirements.lock (some minutes the first time)"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
