"""Source blocks in Avro give the positions that the same blocks give in JSON."""

import json
from typing import Any

import numpy as np
import pytest

from ch_sink.decode import Decoder
from ch_sink.model.change import Records
from ch_sink.model.policy import policy_of
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.types.column import Column
from tests.support.avro import Topic, envelope

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
        records = Records("t", 0, np.arange(1), np.zeros(1, dtype=np.int64), [b'{"id":1}'], [value])
        batch = Decoder(TABLE, policy_of(), registry=registry).decode(records)
        assert batch.bad == []
        found.append((batch.commit.tolist(), batch.inner.tolist(), batch.has_commit.tolist()))
    assert found[0] == found[1]
