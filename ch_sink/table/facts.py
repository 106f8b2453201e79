"""What the server says about itself and about row policies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ch_sink.types.column import WIDE_YEARS, Years

__all__ = ["POLICIES_SQL", "SERVER_SQL", "YEARS_SQL", "RowPolicy", "ServerFacts", "years_of"]

YEARS_SQL = """\
[
        toString(toDate32('0001-01-01')), toString(toDate32('9999-12-31')),
        toString(toDateTime64('0001-01-01 00:00:00', 3, 'UTC')), toString(toDateTime64('9999-12-31 00:00:00', 3, 'UTC'))
    ]"""
"""Dates and times at the ends, as the server shows them: older ones move them to what they hold."""

SERVER_SQL = f"""\
SELECT
    version() AS version,
    timezone() AS timezone,
    currentUser() AS user,
    (
        SELECT mapFromArrays(groupArray(name), groupArray(value))
        FROM system.settings
        WHERE name IN ('apply_row_policy_after_final', 'async_insert')
    ) AS settings,
    {YEARS_SQL} AS years"""
"""One row; a setting that the server does not know is left out."""

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
    """None if the server does not know the setting: it then applies policies before FINAL."""
    policies: tuple[RowPolicy, ...] | None = None
    timezone: str = ""
    async_insert: bool = False
    years: Years = WIDE_YEARS
    fixed_settings: tuple[tuple[str, str], ...] = ()
    """Settings that inserts depend on, that the user may not change and that have a wrong value; their values."""

    @staticmethod
    def from_rows(
        server: Mapping[str, Any],
        policies: Sequence[Mapping[str, Any]] | None,
        fixed_settings: Mapping[str, str] | None = None,
    ) -> "ServerFacts":
        """From the row of ``SERVER_SQL`` and those of ``POLICIES_SQL`` (None if they were refused)."""
        settings = {str(name): str(value) for name, value in server["settings"].items()}
        after_final = settings.get("apply_row_policy_after_final")
        return ServerFacts(
            str(server["version"]),
            str(server["user"]),
            None if after_final is None else after_final in ("1", "true"),
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
            str(server["timezone"]),
            settings.get("async_insert") in ("1", "true"),
            years_of(server["years"]),
            tuple((fixed_settings or {}).items()),
        )


def years_of(shown: Sequence[str]) -> Years:
    """The years in the answer to ``YEARS_SQL``. Only whole years count (some servers end in mid-2283)."""
    first_date, last_date, first_time, last_time = (str(text) for text in shown)
    return Years((_first(first_date), _last(last_date)), (_first(first_time), _last(last_time)))


def _first(text: str) -> int:
    year, whole = int(text[:4]), text[4:10] == "-01-01"
    # A server that shows year 1 holds year 0, too.
    return 0 if year == 1 else year if whole else year + 1


def _last(text: str) -> int:
    return int(text[:4]) - (text[4:10] != "-12-31")
