"""What a command that fills a table notes in the table's comment, for whoever comes after it if it is killed."""

import json
from collections.abc import Mapping
from typing import Any

from ch_sink.errors import StreamFailed
from ch_sink.ports import Ledger, TableRefilled
from ch_sink.table.model import TargetTable

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


def is_entered(comment: str, ledger: Ledger) -> bool:
    """Whether the ledger knows of the filling that a table's comment notes, if it notes one."""
    noted = marked(comment)
    if noted is None or "results" not in noted:
        return True
    facts = [TableRefilled(**fact) for fact in noted["refilled"]]
    return {*facts} <= {*ledger.facts(TableRefilled)} and all(ledger.progress(f.topic_id) for f in facts)


def expect_entered(table: TargetTable, ledger: Ledger) -> None:
    """Raises StreamFailed if the table was refilled, and the ledger does not know up to where."""
    if not is_entered(table.comment, ledger):
        raise StreamFailed(
            f"{table.qualified} was filled by a run that was killed before it was recorded",
            hint="Run the same `ch_sink resync CONFIG --apply` again (with its --against) to finish it.",
        )
