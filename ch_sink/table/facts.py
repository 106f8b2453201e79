"""Facts that the server states about itself and about row policies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ch_sink.types.column import WIDE_YEARS, Years
from ch_sink.types.sql import quote

_ON = ("1", "true")
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
        WHERE name IN ('apply_row_policy_after_final', 'optimize_move_to_prewhere_if_final')
    ) AS settings,
    {YEARS_SQL} AS years"""
"""One row; a setting that the server does not know is left out."""

POLICIES_SQL = """\
SELECT short_name, select_filter, apply_to_all, apply_to_list, apply_to_except, currentUser() AS user
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

    @staticmethod
    def of(row: Mapping[str, Any]) -> "RowPolicy":
        """From a row of ``POLICIES_SQL``."""
        return RowPolicy(
            str(row["short_name"]),
            str(row["select_filter"]),
            bool(row["apply_to_all"]),
            tuple(row["apply_to_list"]),
            tuple(row["apply_to_except"]),
        )

    def concerns(self, user: str) -> bool:
        """Whether the policy names this user (users that get it through a role are not seen)."""
        return user not in self.spared if self.everybody else user in self.users

    def binds(self, user: str) -> str:
        """The problem of a policy that concerns the sink's own user."""
        return f"row policy {self.name} also binds the sink's own user {user}: its lookups would miss rows"

    def spare(self, user: str, table: str) -> str:
        """The statement that lets the policy leave the user out."""
        return f"ALTER ROW POLICY {quote(self.name)} ON {table} TO ALL EXCEPT {quote(user)};"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Version, user and settings of the server, and the table's row policies (None: not allowed to see them)."""

    version: str
    user: str = ""
    policies_after_final: bool = True
    """Whether FINAL chooses among all rows before row policies hide some; see `policies_after_final`."""
    policies: tuple[RowPolicy, ...] | None = None
    timezone: str = ""
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
        return ServerFacts(
            str(server["version"]),
            str(server["user"]),
            policies_after_final(str(server["version"]), settings),
            None if policies is None else tuple(map(RowPolicy.of, policies)),
            str(server["timezone"]),
            years_of(server["years"]),
            tuple((fixed_settings or {}).items()),
        )


def version_of(text: str) -> tuple[int, int]:
    """Year and month of a server's version, such as (25, 8) of ``25.8.2.1``; late ones of a text that states none."""
    year, _, rest = text.partition(".")
    month = rest.partition(".")[0]
    return (int(year), int(month)) if year.isdigit() and month.isdigit() else (9999, 12)


def policies_after_final(version: str, settings: Mapping[str, str]) -> bool:
    """Whether a server of this version, with these values of the settings that it knows, filters after FINAL.

    The setting is known since 25.12 (25.11.10), and on by default since 26.2 (25.12.7). Before, a policy was applied
    after FINAL unless conditions were moved to PREWHERE there; since ClickHouse's change 87303 it is moved always: in
    25.9, and in Altinity's builds of older versions. Seen on 25.8.2, 26.1.2, 26.3.9, 26.5.1, 26.7.2 and 26.9.2.
    """
    value = settings.get("apply_row_policy_after_final")
    if value is not None:
        return value in _ON
    moved = settings.get("optimize_move_to_prewhere_if_final") in _ON
    return version_of(version) < (25, 9) and "altinity" not in version and not moved


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
