"""What the server says about itself and about row policies, as far as the checks need it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["POLICIES_SQL", "SERVER_SQL", "RowPolicy", "ServerFacts"]

SERVER_SQL = """\
SELECT
    version() AS version,
    currentUser() AS user,
    (SELECT any(value) FROM system.settings WHERE name = 'apply_row_policy_after_final' HAVING count() > 0)
        AS apply_row_policy_after_final"""
"""One row; the setting is NULL on servers that do not know it."""

POLICIES_SQL = """\
SELECT short_name, select_filter, apply_to_all, apply_to_list, apply_to_except
FROM system.row_policies
WHERE database = {database:String} AND table IN ({table:String}, '') AND select_filter != ''"""
"""The row policies of a table; needs the grant SHOW ROW POLICIES."""


@dataclass(frozen=True, slots=True)
class RowPolicy:
    """A row policy of the target table."""

    name: str
    condition: str
    everybody: bool = False
    users: tuple[str, ...] = ()
    spared: tuple[str, ...] = ()

    def concerns(self, user: str) -> bool:
        """Whether the policy names this user (users that get it through a role are not seen)."""
        return user not in self.spared if self.everybody else user in self.users


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Version, user and settings of the server, and the table's row policies (None: not allowed to see them)."""

    version: str
    user: str = ""
    apply_row_policy_after_final: bool | None = None
    """None where the server does not know the setting: it then applies policies before FINAL."""
    policies: tuple[RowPolicy, ...] | None = None

    @staticmethod
    def from_rows(server: Mapping[str, Any], policies: Sequence[Mapping[str, Any]] | None) -> "ServerFacts":
        """From the row of ``SERVER_SQL`` and those of ``POLICIES_SQL`` (None where they were refused)."""
        setting = server["apply_row_policy_after_final"]
        return ServerFacts(
            str(server["version"]),
            str(server["user"]),
            None if setting is None else str(setting) in ("1", "true"),
            None
            if policies is None
            else tuple(
                RowPolicy(
                    str(row["short_name"]),
                    str(row["select_filter"]),
                    bool(row["apply_to_all"]),
                    tuple(row["apply_to_list"]),
                    tuple(row["apply_to_except"]),
                )
                for row in policies
            ),
        )
