"""By which key a stream reads: what is refused before a table is made, and which of two keys is taken."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from ch_sink.decode import Decoder
from ch_sink.discovery.findings import topic_findings
from ch_sink.discovery.init_plan import plan_init
from ch_sink.discovery.look import Sampled, examine
from ch_sink.discovery.stream_key import KeyRule
from ch_sink.errors import ChSinkError
from ch_sink.model.policy import policy_of
from ch_sink.types.column import Column
from tests.support.decoding import replacing
from tests.support.event import chunk_of
from tests.unit.discovery.test_obstacles import config

OLD, NEW = {"id": 1}, {"region": "n", "id": 1}
ROW = {"op": "c", "before": None, "after": {"id": 1, "region": "n", "v": "a"}, "source": {"connector": "mysql"}}
BEGIN_ANEW = "begin another table and another `stream` with start: latest"


def look(*partitions: Sequence[Any], rule: KeyRule = KeyRule(), values: Any = ROW, **more: Any) -> Sampled:  # noqa: B008
    """The sample of records with these keys, a list for each partition; the second after a second, and so on."""
    parts = [
        chunk_of([json.dumps(key).encode() for key in keys], [json.dumps(values).encode()] * len(keys), sent=1000 * at)
        for at, keys in enumerate(partitions)
    ]
    return examine(parts, "t", config(**more).policy(), rule=rule)


def refused(seen: Sampled, **more: Any) -> ChSinkError:
    """Why ``init`` makes no table, which ``check`` says too."""
    with pytest.raises(ChSinkError) as caught:
        plan_init(config(**more), seen, None)
    fails = [f for f in topic_findings(seen, config(**more)) if f.level == "fail"]
    assert [(f.title, f.detail, f.remedy) for f in fails] == [("key", caught.value.message, caught.value.hint)]
    return caught.value


def order_by(seen: Sampled, **more: Any) -> str:
    made = plan_init(config(**more), seen, None).statements[1].sql
    return made.partition("ORDER BY ")[2].partition("\n")[0]


@pytest.mark.parametrize("partitions", [[[OLD, OLD, NEW]], [[OLD], [NEW, NEW]]])
def test_a_new_stream_that_reads_two_keys_is_refused(partitions: list[list[dict[str, Any]]]) -> None:
    error = refused(look(*partitions))
    assert error.message == "topic t: the key has the columns region, id, earlier ones had id"
    assert BEGIN_ANEW in str(error.hint)


@pytest.mark.parametrize("partitions", [[[OLD, NEW]], [[OLD], [NEW]], [[OLD, OLD], [OLD, OLD], [OLD, NEW, NEW]]])
def test_a_stream_that_begins_with_the_latest_has_the_newest_key(partitions: list[list[dict[str, Any]]]) -> None:
    latest = KeyRule(latest=True)
    assert order_by(look(*partitions, rule=latest), start="latest") == "(`region`, `id`)"
    assert order_by(look(*partitions[::-1], rule=latest), start="latest").count("`") == 2 * len(partitions[0][-1])


def test_a_key_that_one_record_of_no_row_has_is_not_the_streams() -> None:
    """Such as a null value of a key that is gone, or of a transaction."""
    keys = [json.dumps(key).encode() for key in (OLD, NEW, {"id": "tx"})]
    values = [json.dumps(ROW).encode(), None, b'{"status":"END","id":"tx","event_count":1,"data_collections":[]}']
    seen = examine([chunk_of(keys, values)], "t", config().policy())
    assert (seen.obstacle, order_by(seen)) == (None, "(`id`)")


def test_key_columns_that_contradict_the_kafka_key_are_refused_as_the_stream_refuses_each_record() -> None:
    table = replacing((Column("id", "Int64"), Column("region", "String"), Column("v", "Nullable(String)")), ("id",))
    records = chunk_of([b'{"region":"n"}'], [json.dumps(ROW).encode()])
    [bad] = Decoder(table, policy_of(key_columns=("id",))).decode(records).bad
    for rule in (KeyRule(), KeyRule(latest=True)):
        error = refused(look([{"region": "n"}], rule=rule, key_columns=["id"]), key_columns=["id"])
        assert error.message == f"topic t: {bad.reason}"
        assert "Leave key_columns out" in str(error.hint)


def test_key_columns_may_name_the_kafka_key_in_any_order_or_a_single_value() -> None:
    assert look([NEW], key_columns=["id", "region"]).obstacle is None
    assert look([1], key_columns=["id"]).obstacle is None
    assert look([OLD, 1, OLD]).obstacle is None


def test_key_columns_that_only_the_newest_records_have() -> None:
    chosen: dict[str, Any] = {"key_columns": ["id", "region"]}
    assert BEGIN_ANEW in str(refused(look([OLD, NEW], **chosen), **chosen).hint)
    assert look([OLD, NEW], rule=KeyRule(latest=True), **chosen).obstacle is None


def test_a_stream_that_has_begun_keeps_the_key_that_it_has_read() -> None:
    begun = KeyRule(("region", "id"))
    assert order_by(look([OLD, NEW], rule=begun)) == "(`region`, `id`)"
    error = refused(look([NEW, NEW], [OLD], rule=begun))
    assert error.message == "topic t: the key has the columns id, earlier ones had region, id"
    assert BEGIN_ANEW in str(error.hint)


def test_a_key_under_the_names_that_avro_allows_is_the_one_that_was_read() -> None:
    row = {**ROW, "after": {"order_id": 1, "v": "a"}}
    assert look([{"order_id": 1}], rule=KeyRule(("order-id",)), values=row).obstacle is None


def test_keys_of_documents_are_the_documents() -> None:
    row = {"op": "c", "after": '{"_id": 1, "v": "a"}', "source": {"connector": "mongodb"}}
    seen = look([{"id": "1"}], values=row, rule=KeyRule(("_id",)))
    assert (seen.obstacle, order_by(seen)) == (None, "(`_id`)")
