"""Flattened rows that all state their operation give the same events together as each of them alone."""

from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from ch_sink.decode.event_form import Forms
from ch_sink.decode.flattened.layout import FlatLayout
from ch_sink.decode.flattened.reader import FlatReader, stated_events
from ch_sink.model.policy import policy_of
from ch_sink.types.column import Column
from tests.support.decoding import replacing

OPS: list[Any] = ["c", "u", "d", "r", "true", ""]
MARKS: list[Any] = ["true", "false", True, False, None, msgspec.UNSET, "other"]


class Image(msgspec.Struct):
    op: Any
    mark: Any


def flat(*roles: str) -> FlatLayout:
    return cast(
        FlatLayout,
        SimpleNamespace(roles={role: at for role, at in (("op", "op"), ("deleted", "mark")) if role in roles}),
    )


@pytest.mark.parametrize("roles", [("op",), ("op", "deleted")])
@pytest.mark.parametrize("marks", [MARKS, ["false"], ["false", "true"], [1, b"true", "false"]])
def test_events_together_are_those_of_each_alone(roles: tuple[str, ...], marks: list[Any]) -> None:
    table, policy = replacing((Column("id", "Int64"),), ("id",)), policy_of()
    reader = FlatReader(table, policy, Forms(frozenset(), policy.events), before=False)
    images = [Image(op, mark) for op, mark in product(OPS, marks)]
    alone = [reader._event(flat(*roles), image, image, {}, None) for image in images]
    together = stated_events(flat(*roles), images, list(images))
    odd = "deleted" in roles and any(type(mark) in (int, bytes) for mark in marks)
    assert together == (None if odd else alone)


@pytest.mark.parametrize("op", [None, msgspec.UNSET, 7])
def test_a_row_that_states_no_operation_is_read_alone(op: Any) -> None:
    images = [Image("c", "false"), Image(op, "false")]
    assert stated_events(flat("op", "deleted"), images, images) is None
    assert stated_events(flat("deleted"), images[:1], images[:1]) is None
