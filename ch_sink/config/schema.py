"""The schema of a configuration, and an example of one with every option."""

from copy import deepcopy
from typing import Any

from ch_sink.config.model import Config
from ch_sink.config.properties import LIBRDKAFKA, REGISTRY, SECRETS
from ch_sink.config.tree import SECRET_KEYS

EXAMPLE = r"""# One file for all tables of a schema. docs/configuration.md has every key with its values and default.
# `ch_sink init --json-schema` prints a JSON Schema for editors.

kafka:
  bootstrap.servers: localhost:9092
  topics: shop\.public\..*            # a regular expression for whole names, or a list; `topic:` for one
  # security.protocol: SASL_SSL       # any consumer property of librdkafka
  # schema.registry.url: http://localhost:8081

clickhouse:
  url: http://localhost:8123
  database: shop                      # templates: {database} {schema} {table} {topic} {topic[0]} {topic[1]} …
  table: "{table}"
  username: default                   # password: CH_SINK__CLICKHOUSE__PASSWORD in the environment
  # cluster: my_cluster               # statements of init run ON CLUSTER
  # settings: {insert_quorum: 2}
  # timeout: 5 minutes
  # connect_timeout: 10
  # compression: zstd
  # verify: true
  # ca_cert: /etc/ssl/ca.pem
  # client_cert: /etc/ssl/client.pem
  # client_cert_key: /etc/ssl/client.key
  # http_proxy: http://proxy:3128

create_tables: true                   # on first sight of a topic; else run `ch_sink init FILE --apply`
# engine: replacing                   # sign-replacing, collapsing, versioned-collapsing, append
# discovery_interval: 30 seconds      # how often new and deleted topics are looked for
# retry_for: 1 hour                   # how long unavailable servers are retried; or unlimited

# What to do with events
# evolve: fail                        # the source has new columns: add_columns, ignore, fail
# truncate: fail                      # apply, ignore, fail
# deletes: fail                       # on a table that cannot mark rows as deleted: fail, ignore
# on_bad_record: dead_letter          # or fail
# errors: {max: 1000, max_rate: 1%}   # stop when more records became dead letters
# on_unresolved: dead_letter          # or null
# out_of_range: fail                  # or clamp, null
# handover_deadline: 10 minutes
# sign_column: sign

# How events are read
# format: auto                        # json, avro
# events: auto                        # envelope, flattened
# tombstones: auto                    # delete, ignore
# flattened: {fields_prefix: __, headers_prefix: __, columns: [__op]}
# key_columns: [id]                   # for topics without Kafka keys
# ignored_key_fields: [tenant]
# decimal_handling: precise           # this and the next two for events that do not declare their types
# binary_handling: bytes
# time_precision: adaptive
# placeholder: __debezium_unavailable_value
# document: {column: document, keys: plain, columns: {city: address.city}}
# version: {strategy: auto}
# redelivery_scan: 10000

# Where to start, and how much at a time
# start: ledger                       # earliest, latest; ledger continues where the stream was
# on_data_loss: fail                  # or continue
# topic_recreated: fail               # or restart
# purge_after: 30d                    # rows that were deleted before that leave the disk
# max_offsets_per_trigger: 1000000
# trigger_interval: 1 second
# flush_interval: 2 seconds           # how long fewer events than flush_rows may wait for more
# flush_rows: 10000
# chunk_offsets: 50000
# chunk_bytes: 64 MiB

# Columns, here or in an exception
# columns:
#   exclude: [password_hash]
#   rename: {mail: email}
#   mask: {phone: sha256}             # sha512, hmac-sha256 with mask_key, redact
#   mask_key: secret                  # better: CH_SINK__COLUMNS__MASK_KEY in the environment
#   add: {source: "'{topic}'"}

# Sums beside a table with engine: collapsing or versioned-collapsing
# rollups:
#   orders_by_day: {by: {day: toDate(created)}, sum: {revenue: amount}, avg: {mean: amount}, count: orders}

# What init creates
# init:
#   order_by: [id]
#   partition_by: toYYYYMM(created)
#   ttl: created + INTERVAL 1 YEAR
#   replication: none                 # path, server
#   allow_nullable_key: false
#   low_cardinality: true
#   arrays: nullable                  # empty_for_null
#   json_type: String                 # JSON
#   json_columns: {payload: JSON}
#   document_type: String
#   row_policy_roles: [reader]
#   settings: {index_granularity: 8192}

# metrics: 127.0.0.1:9095             # address of the job's metrics
# spark: {master: "local[*]", conf: {spark.driver.memory: 1g}}
# state_tables:                       # names of the sink's own tables
#   ledger: ch_sink_ledger
#   dead_letters: ch_sink_dead_letters
#   handover: ch_sink_handover
#   pending: ch_sink_pending
# stream: "{topic}"                   # another name of the streams than <topic>:<database>.<table>
# split: true                         # topics carry several source tables: a stream for each of them
# source_table: public.orders         # only this one of them
# merge: false                        # true: several topics in one table; a column tells their rows apart

tables:                               # exceptions: the first that matches holds; most keys above may stand here
  - match: shop\.public\.audit
    engine: append
  - match: shop\.public\.tmp_.*
    skip: true
  - match: shop\.public\.users
    columns: {exclude: [password_hash], rename: {mail: email}, mask: {phone: sha256}, add: {tenant: "'eu'"}}
"""


_TEMPLATE = "May hold {database}, {schema}, {table}, {topic}, {topic[1]}."
_PATTERN = {"type": "string", "format": "regex"}
_SHARED = ("kafka", "spark", "tables")
"""Keys that do not differ from table to table."""


def json_schema() -> dict[str, Any]:
    """The schema of a file of one topic or of many."""
    made = Config.model_json_schema()
    sections: dict[str, Any] = made["$defs"]
    _one_line(made)
    sections["KafkaSection"] = _kafka(sections["KafkaSection"])
    for section in sections.values():
        _with_files(section)
    place = sections["ClickHouseSection"]
    place["required"] = ["url"]
    for name in ("database", "table"):
        place["properties"][name]["description"] = _TEMPLATE
    keys = made["properties"]
    own = keys["tables"]
    sections["Exception"] = _exception(keys)
    sections["ExceptionClickHouseSection"] = {**deepcopy(place), "required": []}
    keys["state_tables"] = {**own, "description": "Names of the sink's own tables."}
    keys["tables"] = {
        "description": "Exceptions for topics; the first that matches holds.",
        "anyOf": [{"type": "array", "items": {"$ref": "#/$defs/Exception"}}, {"$ref": "#/$defs/TablesSection"}],
    }
    made.update(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "ch_sink",
            "description": "Streams of change events from Kafka into ClickHouse tables.",
        }
    )
    return made


def _kafka(found: dict[str, Any]) -> dict[str, Any]:
    """The section ``kafka`` as files have it: properties of librdkafka beside ``topic`` and ``topics``."""
    scalar = {"type": ["string", "number", "boolean"]}
    keys: dict[str, Any] = {
        "topic": {"type": "string", "minLength": 1, "description": "The one topic."},
        "topics": {
            "description": "Many topics: a regular expression for whole names, or a list of names and expressions.",
            "anyOf": [_PATTERN, {"type": "array", "items": {"type": "string"}, "minItems": 1}],
        },
    }
    for name in sorted(LIBRDKAFKA | REGISTRY):
        keys[name] = {**scalar, "writeOnly": True} if name in SECRETS else dict(scalar)
    return {
        "type": "object",
        "title": "KafkaSection",
        "description": found.get("description", ""),
        "properties": keys,
        "additionalProperties": False,
        "oneOf": [{"required": ["topic"]}, {"required": ["topics"]}],
        "anyOf": [{"required": ["bootstrap.servers"]}, {"required": ["metadata.broker.list"]}],
    }


def _with_files(section: dict[str, Any]) -> None:
    """Secrets may be in files: ``password_file`` beside ``password``."""
    keys = section.get("properties", {})
    for name in sorted(SECRET_KEYS & keys.keys()):
        keys[f"{name}_file"] = {"type": "string", "description": f"A file that holds `{name}`."}


def _exception(keys: dict[str, Any]) -> dict[str, Any]:
    own = {name: deepcopy(schema) for name, schema in keys.items() if name not in _SHARED}
    own["clickhouse"] = {"$ref": "#/$defs/ExceptionClickHouseSection"}
    own["match"] = {**_PATTERN, "description": "A regular expression for whole names of topics."}
    own["skip"] = {"type": "boolean", "description": "These topics are left out."}
    return {"type": "object", "properties": own, "required": ["match"], "additionalProperties": False}


def _one_line(found: Any) -> None:
    """Descriptions as one line in Markdown."""
    for inner in found.values() if isinstance(found, dict) else found if isinstance(found, list) else ():
        _one_line(inner)
    if isinstance(found, dict) and isinstance(text := found.get("description"), str):
        found["description"] = " ".join(text.replace("``", "`").split())
