"""Row policies that hide deleted rows from readers of the table itself.

A policy hides delete rows, but not the older live rows beneath them: under ``FINAL`` it is right only where the
server applies it after ``FINAL`` (``apply_row_policy_after_final``), and without ``FINAL`` only once everything is
merged. The current-state view is right always.
"""

from collections.abc import Sequence

from ch_sink.errors import TableError
from ch_sink.table.model import Engine, Family
from ch_sink.table.templates import render
from ch_sink.types.sql import quote

__all__ = ["create_row_policy", "policy_condition", "policy_name"]


def policy_name(table: str) -> str:
    """Short name of the policy that ``init`` makes for a table."""
    return f"ch_sink_{table}"


def policy_condition(engine: Engine) -> str | None:
    """The condition that live rows meet; None if the engine marks no row as deleted."""
    if engine.is_deleted_column is not None:
        return f"{quote(engine.is_deleted_column)} = 0"
    if engine.sign_column is not None and engine.family is not Family.MERGE_TREE:
        return f"{quote(engine.sign_column)} != -1"
    return None


def create_row_policy(
    database: str,
    table: str,
    engine: Engine,
    roles: Sequence[str],
    *,
    spare: Sequence[str] = (),
    cluster: str | None = None,
) -> str:
    """The CREATE ROW POLICY statement for users or roles; ``all`` means everybody but ``spare``.

    The sink's own user must be spared: it looks up delete rows. On collapsing engines sums over ``sign`` are wrong
    for readers under the policy; ``FINAL`` and the view stay right. Raises TableError for an engine whose rows do
    not tell whether they are deleted, and for append tables, where the row before a delete would show.
    """
    condition = policy_condition(engine)
    if condition is None:
        raise TableError(
            f"{quote(database)}.{quote(table)} is a {engine.name}: no row policy can hide deleted rows there",
            hint="Let readers use the current-state view; grant SELECT on it and not on the table.",
        )
    if any(role.lower() == "all" for role in roles):
        grantees = "ALL" + (f" EXCEPT {', '.join(quote(name) for name in spare)}" if spare else "")
    else:
        grantees = ", ".join(quote(role) for role in roles)
    return render(
        "row_policy",
        policy=quote(policy_name(table)),
        on_cluster=f" ON CLUSTER {quote(cluster)}" if cluster else "",
        table=f"{quote(database)}.{quote(table)}",
        condition=condition,
        roles=grantees,
    )
