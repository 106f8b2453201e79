"""What a command that fills a table notes in the table's comment, for whoever comes after it if it is killed."""

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["fill_note", "marked", "to_enter"]

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


def to_enter(comment: str) -> dict[str, Any] | None:
    """What the comment of a table that is filled and in place says the ledger has to know; None for any other."""
    noted = marked(comment)
    return noted if noted is not None and "results" in noted else None
