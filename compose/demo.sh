#!/usr/bin/env bash
# The whole pipeline in containers: sources, Debezium, Kafka, Spark, ClickHouse.
#   compose/demo.sh [--avro]   start everything, change the sources, wait until the tables equal them
#   compose/demo.sh change     change the sources once more
#   compose/demo.sh compare    compare the tables with their sources; exit code 1 when they differ
#   compose/demo.sh status     ch_sink status of both streams
#   compose/demo.sh down       stop and remove everything, volumes included
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
say() { printf '%s\n' "$*" >&2; }
compose() { docker compose -f "$here/compose.yaml" "$@"; }

change() {
  # The passwords are the containers' own.
  compose exec -T mariadb sh -c 'exec mariadb -udebezium -p"$MARIADB_PASSWORD" shop' <"$here/changes/mariadb.sql"
  compose exec -T postgres psql -q -v ON_ERROR_STOP=1 -U debezium shop <"$here/changes/postgres.sql"
}

source_rows() { # rows of a source table, a line each
  case $1 in
    customers) compose exec -T mariadb sh -c 'exec mariadb -N -B -udebezium -p"$MARIADB_PASSWORD" shop' ;;
    orders) compose exec -T postgres psql -q -A -t -F $'\t' -U debezium shop ;;
  esac <"$here/compare/$1.source.sql"
}

sink_rows() {
  compose exec -T clickhouse sh -c \
    'exec clickhouse-client --user "$CLICKHOUSE_USER" --password "$CLICKHOUSE_PASSWORD" --format TSVRaw' \
    <"$here/compare/$1.clickhouse.sql"
}

compare() { # compare SECONDS: gives the sink that long to catch up
  local table until differ
  for table in customers orders; do
    until=$((SECONDS + $1))
    until differ=$(diff <(source_rows "$table") <(sink_rows "$table")); do
      if ((SECONDS >= until)); then
        say "$table differs from its source (< source, > ClickHouse):"
        head -20 <<<"$differ" >&2
        return 1
      fi
      sleep 2
    done
    say "$table equals its source: $(source_rows "$table" | wc -l) rows"
  done
}

if [[ " --avro change compare status down " != *" ${1:---avro} "* ]]; then
  sed -n '3,7s/^# *//p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
if ! docker compose version >/dev/null 2>&1; then
  say "docker compose is needed: Docker with its compose plugin, 2.20 or newer."
  exit 2
fi
case ${1:-} in
  '' | --avro)
    [ "${1:-}" = --avro ] && export DEMO_FORMAT=avro
    compose up --build --detach --wait || {
      say "Not everything came up. What the services say: docker compose -f $here/compose.yaml logs register init sink"
      exit 1
    }
    compare 120
    say "Changing the sources"
    change
    compare 120
    ;;
  change) change ;;
  compare) compare 0 ;;
  status) compose exec -T sink ch_sink status /streams/customers.yaml /streams/orders.yaml ;;
  down) compose down --volumes --remove-orphans ;;
esac
