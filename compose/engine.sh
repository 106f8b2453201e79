#!/usr/bin/env bash
# Installs an older ClickHouse engine (chDB) beside the environment's own: FOLDER/VERSION, about 500 MB.
# Usage: engine.sh VENV VERSION    with a VERSION of compose/engines/
#
# Only `EmbeddedClickHouse(engine=VERSION)` uses it, in the server's process. If pip fails, its last words are kept in
# VERSION.error, where the tests that are skipped for want of the engine quote them.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=$1 version=$2
pinned=compose/engines/$version.txt
target=$venv/engines/$version
error=$target.error
if [ ! -f "$pinned" ]; then
  echo "There is no engine $version; those that can be installed: $(basename -s .txt compose/engines/*.txt | tr '\n' ' ')" >&2
  exit 2
fi
cmp -s "$pinned" "$target/pinned.txt" && exit 0

echo "Installing the ClickHouse engine $version" >&2
fresh=$(mktemp -d -p "$(mkdir -p "$venv/engines" && cd "$venv/engines" && pwd)" ".$version.XXXXXX")
trap 'rm -rf "$fresh"' EXIT
if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
  --require-hashes -r "$pinned" --target "$fresh/engine" 2>"$fresh/words"; then
  tail -n 1 "$fresh/words" | tee "$error" >&2
  exit 1
fi
cp "$pinned" "$fresh/engine/pinned.txt"
rm -rf "$target" "$error"
mv -T "$fresh/engine" "$target" 2>/dev/null || [ -d "$target" ] # another run was faster
