"""How `explain` shows the events and the rows of a key."""

import pytest

from ch_sink.cli.explain import _event, _stored
from ch_sink.trust.biography import Biography, Event

LONG = "x" * 8192


def test_a_long_value_is_cut_to_a_line_unless_all_of_it_is_asked_for() -> None:
    found = Biography({"id": 7}, stored=[{"id": "7", "v": f"{LONG}\nend", "w": "short"}])
    [line] = _stored(found, whole=False)
    assert line == f"stored: id=7, v={'x' * 60}… (8196 characters), w=short"
    [line] = _stored(found, whole=True)
    assert f"v={LONG}\nend" in line


@pytest.mark.parametrize(
    ("mark", "row", "deleted"),
    [
        (("_is_deleted", "1"), {"id": "7", "_is_deleted": "1"}, True),
        (("_is_deleted", "1"), {"id": "7", "_is_deleted": "0"}, False),
        (("_sign", "-1"), {"id": "7", "_sign": "-1"}, True),
        (None, {"id": "7", "_sign": "-1"}, False),
    ],
)
def test_a_deleted_row_is_called_so_before_its_values(
    mark: tuple[str, str] | None, row: dict[str, str], deleted: bool
) -> None:
    found = Biography({"id": 7}, stored=[row], deleted=mark)
    assert _stored(found, whole=False)[0].startswith("stored (deleted): id=7" if deleted else "stored: id=7")
    assert found.as_json()["stored"][0]["deleted"] is deleted


@pytest.mark.parametrize(
    ("op", "half", "what"),
    [("c", 0, "create"), ("d", 1, "delete (key change)"), ("r", 0, "snapshot"), ("?", 0, "unreadable")],
)
def test_an_event_says_what_it_was(op: str, half: int, what: str) -> None:
    event = Event(0, 5, op, 7, 0, 9, "dead letter", LONG, half=half)
    shown = _event(event, whole=False)
    assert shown[:3] == (0, 5, what)
    assert len(str(shown[-1])) < 400
    assert _event(event, whole=True)[-1] == LONG
