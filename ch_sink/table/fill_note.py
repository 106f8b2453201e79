"""What a command that fills a table notes in the table's comment, for whoever comes after it if it is killed."""

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["awaits_its_ledger", "fill_note", "marked"]

_MARK = "ch_sink fills this table: "


def fill_note(noted: Mapping[str, Any]) -> str:
    """The comment that says so."""
    return _MARK + json.dumps(noted)


def marked(comment: str) -> dict[str, Any] | None:
    """What the comment of a table says that a run filled and did not finish; None for any other table."""
    if not comment.startswith(_MARK):
        return None
    noted: dict[str, Any] = json.loads(comment.removeprefix(_MARK))
    return noted


def awaits_its_ledger(comment: str) -> bool:
    """Whether the table is filled and in place, as far as its comment says, and the ledger may not know it yet."""
    return "results" in (marked(comment) or ())
