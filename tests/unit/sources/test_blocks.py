"""Source blocks as connectors write them, to positions: one line each."""

import json
from typing import Any

import msgspec
import pytest

from ch_sink.decode import Decoder
from ch_sink.errors import PositionError
from ch_sink.model.policy import policy_of
from ch_sink.sources import SOURCES, Positions, source_for
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.types.column import Column
from tests.support.avro import Topic, envelope
from tests.support.event import chunk_of

SINGLESTORE = {
    "txId": "ffffffffffffffff0000000000000003000000000000004600000000000460390000000000000000",
    "partitionId": 0,
    "offsets": ["000000000000000300000000000000460000000000046049"],
}
LCR = "000000000038527a00000001000000010000000000385276000000010000000102"
SHORT_LCR = "00000038527a000000010000000100000038527600000001000000010" + "2"


def positions(connector: str, *blocks: dict[str, Any]) -> Positions:
    source = source_for(connector)
    return source.positions([msgspec.json.decode(json.dumps(block), type=source.wire) for block in blocks])


def one(connector: str, block: dict[str, Any]) -> tuple[int, int, bool]:
    """Commit position, inner position, and whether the event states the former."""
    found = positions(connector, block)
    commit, inner = ((int(w[0, 0]) << 64) | int(w[0, 1]) for w in (found.commit, found.inner))
    return commit, inner, bool(found.has_commit[0])


MYSQL = {"server_id": 223344, "file": "mysql-bin.000003", "pos": 805, "row": 2, "thread": 7, "query": "UPDATE …"}


@pytest.mark.parametrize(
    ("connector", "block", "wanted"),
    [
        # A GTID, of whatever form, changes nothing: it is not an order, and snapshots have none.
        ("mysql", MYSQL | {"gtid": None}, ((3 << 40) | 805, (805 << 64) | 2, True)),
        (
            "mysql",
            MYSQL | {"gtid": "24bc7850-2c16-11e6-a073-0242ac110002:9"},
            ((3 << 40) | 805, (805 << 64) | 2, True),
        ),
        (
            "mysql",
            MYSQL | {"gtid": "24bc7850-2c16-11e6-a073-0242ac110002:nightly:1"},
            ((3 << 40) | 805, (805 << 64) | 2, True),
        ),
        ("mariadb", MYSQL | {"gtid": "0-22301-17"}, ((3 << 40) | 805, (805 << 64) | 2, True)),
        (
            "postgresql",
            {"txId": 556, "lsn": 24023128, "xmin": None, "sequence": '["24023119","24023128"]'},
            (24023119, 24023128, True),
        ),
        (
            "sqlserver",
            {
                "change_lsn": "00000027:00000ac0:0002",
                "commit_lsn": "00000027:00000ac0:0007",
                "event_serial_no": "2",
            },
            (0x27_0000_0AC0_0007, (0x27_0000_0AC0_0002 << 48) | 2, True),
        ),
        (
            "sqlserver",
            {"change_lsn": None, "commit_lsn": "00000025:00000d98:00a2", "event_serial_no": None},
            (0x25_0000_0D98_00A2, 0, True),
        ),
        ("sqlserver", {"change_lsn": None, "commit_lsn": "00", "event_serial_no": None}, (0, 0, False)),
        (
            "oracle",
            {
                "txId": "0500080076ca0000",
                "scn": "289815835",
                "commit_scn": "289815836",
                "lcr_position": None,
                "rs_id": "0x0034b1.00143517.0010",
                "ssn": 0,
                "redo_thread": 1,
            },
            (289815836, (289815835 << 64) | (0x143517 << 32) | (0x10 << 16), True),
        ),
        (
            "oracle",
            {"scn": "2208886", "commit_scn": None, "lcr_position": None},
            (2208886, 2208886 << 64, False),
        ),
        ("oracle", {"scn": "0", "commit_scn": "0"}, (0, 0, False)),
        ("oracle", {"scn": 3634640, "commit_scn": 3638537}, (3638537, 3634640 << 64, True)),
        ("oracle", {"scn": "null", "commit_scn": "null", "rs_id": "elsewhere", "ssn": 3}, (0, 0, False)),
        (
            "oracle",
            {"scn": "3691126", "commit_scn": None, "lcr_position": LCR},
            (0x38527A, (0x385276 << 64) | (1 << 32) | 1, True),
        ),
        (
            "oracle",
            {"scn": "3691126", "commit_scn": None, "lcr_position": SHORT_LCR},
            (0x38527A, (0x385276 << 64) | (1 << 32) | 1, True),
        ),
        (
            "db2",
            {
                "change_lsn": "00000000:00000000:000000000446140f",
                "commit_lsn": "00000000:00001e36:000000000004a1b4",
            },
            (0x1E36 << 16, (0x4A1B4 << 80) | 0x446140F, True),
        ),
        (
            "db2",
            {"change_lsn": None, "commit_lsn": "00000000:0000150f:0000000000048fca"},
            (0x150F << 16, 0x48FCA << 80, True),
        ),
        (
            "db2",
            {"change_lsn": "00000027:00000758:0003", "commit_lsn": "00000027:00000758:0005"},
            (0x27_0000_0758_0005, 0x27_0000_0758_0003, True),
        ),
        ("db2", {"change_lsn": "NULL", "commit_lsn": "NULL"}, (0, 0, False)),
        ("singlestore", SINGLESTORE, (0, (0x46 << 64) | 0x46049, False)),
        (
            "singlestore",
            {"txId": None, "partitionId": 1, "offsets": [None, "ff" * 28]},
            (0, (1 << 128) - 1, False),
        ),
        ("singlestore", {"partitionId": 1, "offsets": ["2f", None]}, (0, 0, False)),
        ("singlestore", {"partitionId": 9, "offsets": ["2f"]}, (0, 0, False)),
        ("vitess", {"vgtid": '[{"keyspace":"k","shard":"-80","gtid":"…"}]', "shard": "-80"}, (0, 0, False)),
        ("informix", {"commit_lsn": "8589934593", "change_lsn": "8589934593", "txId": "3"}, (0, 0, False)),
    ],
)
def test_positions(connector: str, block: dict[str, Any], wanted: tuple[int, int, bool]) -> None:
    assert one(connector, block) == wanted


@pytest.mark.parametrize(
    ("connector", "block", "field"),
    [
        ("oracle", {"scn": "12a"}, r"source\.scn"),
        ("oracle", {"scn": "1", "commit_scn": "99999999999999999999"}, r"source\.commit_scn"),
        ("oracle", {"scn": "1", "rs_id": "0x1.2.3", "ssn": "x"}, r"source\.ssn"),
        ("oracle", {"scn": "1", "lcr_position": "0000"}, r"source\.lcr_position"),
        ("db2", {"commit_lsn": "27:758"}, r"source\.commit_lsn"),
        ("db2", {"commit_lsn": "00000027:00000758:0005", "change_lsn": "x"}, r"source\.change_lsn"),
        ("singlestore", {"partitionId": 0, "offsets": ["wide"]}, r"source\.offsets\[0\]"),
    ],
)
def test_what_is_no_position_is_named(connector: str, block: dict[str, Any], field: str) -> None:
    with pytest.raises(PositionError, match=field):
        positions(connector, block)


def test_offsets_of_varying_width_compare_as_numbers() -> None:
    narrow, wide = (
        "000000000000000300000000000000530000000000053179",
        "00000000000000000000000300000000000000530000000000053180",
    )
    assert narrow > wide  # as texts
    found = positions("singlestore", *({"partitionId": 0, "offsets": [text]} for text in (narrow, wide)))
    assert found.inner[0].tolist() < found.inner[1].tolist()


@pytest.mark.parametrize(
    ("connector", "rising"),
    [
        (
            "db2",
            [
                "00000000:00001e36:000000000004a1b4",
                "00000000:00001e36:ffffffffffffffff",
                "00000000:00001e37:0" + 15 * "0",
            ],
        ),
        ("db2", ["00000027:00000758:0005", "00000027:00000758:000a", "00000028:00000000:0000"]),
        ("sqlserver", ["00000027:00000758:0005", "00000027:00000758:000a", "0000002f:00000000:0000"]),
    ],
)
def test_lsns_are_ordered_as_the_connector_orders_them(connector: str, rising: list[str]) -> None:
    """Commit position, then inner position: never falling, and told apart."""
    found = positions(connector, *({"commit_lsn": text, "change_lsn": None} for text in rising))
    both = [(*c, *i) for c, i in zip(found.commit.tolist(), found.inner.tolist(), strict=True)]
    assert both == sorted(both)
    assert found.commit.tolist() == sorted(found.commit.tolist())
    assert connector == "sqlserver" or len(set(both)) == len(both)


def test_an_unlisted_connector_is_ordered_by_kafka() -> None:
    source = source_for("cockroachdb")
    assert (source.name, source.default_strategy) == ("cockroachdb", "kafka_offset")
    assert not source.unique_inner
    assert source_for("cockroachdb") is source
    assert source not in SOURCES


ORDERED = ("mysql", "mariadb", "postgresql", "sqlserver", "oracle", "db2")


def test_default_strategies() -> None:
    strategies = [source_for(name).default_strategy for name in (*ORDERED, "singlestore")]
    assert strategies == ["source_position"] * len(ORDERED) + ["kafka_offset"]


TEXT, LONG, INT = ["null", "string"], ["null", "long"], ["null", "int"]
BLOCKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sqlserver": (
        {"change_lsn": TEXT, "commit_lsn": TEXT, "event_serial_no": LONG},
        {"change_lsn": "00000027:00000ac0:0002", "commit_lsn": "00000027:00000ac0:0007", "event_serial_no": 2},
    ),
    "oracle": (
        {"scn": TEXT, "commit_scn": TEXT, "lcr_position": TEXT, "rs_id": TEXT, "ssn": LONG, "redo_thread": INT},
        {
            "scn": "289815835",
            "commit_scn": "289815836",
            "lcr_position": None,
            "rs_id": "0x0034b1.00143517.0010",
            "ssn": 3,
            "redo_thread": 1,
        },
    ),
    "db2": (
        {"change_lsn": TEXT, "commit_lsn": TEXT},
        {"change_lsn": None, "commit_lsn": "00000000:00001e36:000000000004a1b4"},
    ),
    "singlestore": (
        {"txId": "string", "partitionId": "int", "offsets": {"type": "array", "items": TEXT}},
        {"txId": "ff", "partitionId": 1, "offsets": [None, "000000000000000300000000000000460000000000046049"]},
    ),
    "vitess": ({"vgtid": "string"}, {"vgtid": "[]"}),
}
TABLE = TargetTable(
    "default",
    "t",
    Engine(Family.REPLACING, "ReplacingMergeTree", "_version", is_deleted_column="_is_deleted"),
    (Column("id", "Int32"), Column("_version", "UInt128"), Column("_is_deleted", "UInt8")),
    sorting_key=("id",),
)


@pytest.mark.parametrize("connector", BLOCKS)
def test_positions_are_those_of_json(connector: str) -> None:
    types, own = BLOCKS[connector]
    block = {"connector": connector, "name": "n", "ts_ms": 5, "snapshot": "true", **own}
    event = {"op": "c", "before": None, "after": {"id": 1}, "source": block}
    topic = Topic()
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    datum = topic.write(envelope([{"name": "id", "type": "int"}], source=fields), event)
    found = []
    for value, registry in ((datum, topic.registry), (json.dumps(event).encode(), None)):
        records = chunk_of([b'{"id":1}'], [value])
        batch = Decoder(TABLE, policy_of(), registry=registry).decode(records)
        assert batch.bad == []
        found.append((batch.commit.tolist(), batch.inner.tolist(), batch.has_commit.tolist()))
    assert found[0] == found[1]
