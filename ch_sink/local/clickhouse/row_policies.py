"""Row policies as `ch_sink init` makes them, for the embedded engine: ``CREATE`` and ``DROP ROW POLICY``.

chDB cannot store policies. It reads one filter per table for its one user, from the users file, when it opens. So the
policies are kept in a file, and those of a table become one condition: any of them holds. A policy ``TO`` a role
applies to a request that asks for the role (the URL parameter ``role``), which the condition sees in ``log_comment``.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from ch_sink.errors import ConfigError
from ch_sink.local.clickhouse.engine import QueryError
from ch_sink.local.clickhouse.sql_text import quote_string

_NAME = r"(`(?:[^`\\]|\\.)+`|\w+)"
_NAMES = rf"({_NAME}(?:\s*,\s*{_NAME})*)"
_POLICY = re.compile(r"\s*\w+\s+(?:ROW\s+)?POLIC", re.IGNORECASE)
_CREATE = re.compile(
    rf"CREATE\s+ROW\s+POLICY\s+(IF\s+NOT\s+EXISTS\s+|OR\s+REPLACE\s+)?{_NAME}\s+ON\s+{_NAME}\.{_NAME}\s+USING\s+(.+)\s+"
    rf"TO\s+(?:ALL\s+EXCEPT\s+{_NAMES}|{_NAMES})",
    re.IGNORECASE | re.DOTALL,
)
_DROP = re.compile(rf"DROP\s+ROW\s+POLICY\s+(IF\s+EXISTS\s+)?{_NAME}\s+ON\s+{_NAME}\.{_NAME}", re.IGNORECASE)
_XML_NAME = re.compile(r"^[A-Za-z_][\w-]*$", re.ASCII)


@dataclass(frozen=True)
class PolicyStatement:
    """A statement, or the policy that it made. Without a condition it is a ``DROP``.

    ``lenient``: IF [NOT] EXISTS; ``replaces``: OR REPLACE. ``roles`` may hold ``ALL``, from which ``excepted`` are
    excepted.
    """

    name: str
    database: str
    table: str
    condition: str = ""
    lenient: bool = False
    roles: tuple[str, ...] = ()
    excepted: tuple[str, ...] = ()
    replaces: bool = False

    @property
    def place(self) -> tuple[str, str, str]:
        return self.name, self.database, self.table


def parse_policy_statement(text: bytes) -> PolicyStatement | None:
    """Read a row policy statement; None when it is another statement. Raises QueryError when it is of another form."""
    words = text.decode(errors="surrogateescape").strip()
    if _POLICY.match(words) is None:
        return None
    if (found := _DROP.fullmatch(words)) is not None:
        return PolicyStatement(_bare(found[2]), _bare(found[3]), _bare(found[4]), lenient=bool(found[1]))
    if (found := _CREATE.fullmatch(words)) is None:
        raise QueryError.make(
            48,
            "NOT_IMPLEMENTED",
            "The embedded server takes CREATE ROW POLICY [IF NOT EXISTS | OR REPLACE] name ON database.table "
            "USING condition TO roles | ALL [EXCEPT roles], and DROP ROW POLICY [IF EXISTS] name ON database.table",
        )
    name, database, table = map(_bare, (found[2], found[3], found[4]))
    for one in (database, table):
        if _XML_NAME.match(one) is None:
            raise QueryError.make(
                48, "NOT_IMPLEMENTED", f"The embedded engine takes no row policy on a table or database named {one!r}"
            )
    excepted, roles = (tuple(map(_bare, re.findall(_NAME, names or ""))) for names in (found[6], found[9]))
    if "all" in roles or found[6]:
        roles = ("ALL",)
    how = (found[1] or "").upper()
    return PolicyStatement(
        name, database, table, found[5].strip(), how.startswith("IF"), roles, excepted, replaces=how.startswith("OR")
    )


def _bare(name: str) -> str:
    if name.startswith("`"):
        return re.sub(r"\\(.)", r"\1", name[1:-1])
    return "all" if name.upper() == "ALL" else name


class RowPolicies:
    """The policies of one data directory, in ``file``; ``user`` is who the requests are authenticated as."""

    def __init__(self, file: Path, user: str) -> None:
        self._file = file
        self._users = {"default", user, "CURRENT_USER"}
        self._lock = threading.Lock()
        self._policies: tuple[PolicyStatement, ...] = ()

    def load(self) -> None:
        """Read the file, if there is one. Raises ConfigError when it is damaged."""
        if not self._file.exists():
            return
        try:
            rows = json.loads(self._file.read_text(encoding="utf-8"))
            self._policies = tuple(
                PolicyStatement(**{**row, "roles": tuple(row["roles"]), "excepted": tuple(row["excepted"])})
                for row in rows
            )
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"The row policies in {self._file} cannot be read: {error}",
                hint="Restore the file, or remove it and create the policies again.",
            ) from None

    def xml(self) -> str:
        """The users file for the current policies."""
        return users_xml(self._filters(self._policies))

    def change(self, statement: PolicyStatement, reopen: Callable[[str], None]) -> None:
        """Carry out CREATE or DROP: ``reopen`` the engine with the new users file, then keep the change.

        Raises QueryError for a policy that exists already or does not exist.
        """
        with self._lock:
            others = tuple(p for p in self._policies if p.place != statement.place)
            exists = len(others) < len(self._policies)
            if statement.replaces and statement in self._policies:
                return
            if exists == bool(statement.condition) and not statement.replaces:
                if statement.lenient:
                    return
                where = f"row policy `{statement.name} ON {statement.database}.{statement.table}`"
                if exists:
                    raise QueryError.make(493, "ACCESS_ENTITY_ALREADY_EXISTS", f"{where} already exists in users_xml")
                raise QueryError.make(523, "UNKNOWN_ROW_POLICY", f"There is no {where} in users_xml")
            changed = (*others, statement) if statement.condition else others
            try:
                reopen(users_xml(self._filters(changed)))
            except Exception:
                reopen(self.xml())
                raise
            self._policies = changed
            self._save()

    def _save(self) -> None:
        fresh = self._file.with_suffix(".new")
        with fresh.open("w", encoding="utf-8") as file:
            json.dump([asdict(p) for p in self._policies], file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._file)

    def _filters(self, policies: Iterable[PolicyStatement]) -> list[tuple[str, str, str]]:
        tables: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for policy in policies:
            if applies := self._applies(policy):
                tables.setdefault((policy.database, policy.table), []).append((applies, policy.condition))
        return [(*table, _condition(group)) for table, group in tables.items()]

    def _applies(self, policy: PolicyStatement) -> str:
        """The condition of the policy: always ("1"), never (""), or a condition on the request's roles."""
        if "ALL" in policy.roles:
            return "" if self._users & set(policy.excepted) else "1"
        if self._users & set(policy.roles):
            return "1"
        asked = [f"position(getSetting('log_comment'), {quote_string(role_mark(role))}) > 0" for role in policy.roles]
        return f"({' OR '.join(asked)})"


def _condition(policies: Sequence[tuple[str, str]]) -> str:
    """Rows that any policy shows; every row if none applies."""
    if len(policies) == 1 and policies[0][0] == "1":
        return policies[0][1]
    nobody = " AND ".join(f"(NOT {applies})" for applies, _ in policies)
    return f"({nobody}) OR " + " OR ".join(f"({applies} AND ({shown}))" for applies, shown in policies)


def role_mark(role: str) -> str:
    """The form in which ``log_comment`` states a request's role."""
    return f" role={role};"


def users_xml(filters: Iterable[tuple[str, str, str]]) -> str:
    """The users file: the one user ``default``, and a filter for each (database, table, condition)."""
    databases: dict[str, dict[str, str]] = {}
    for database, table, condition in filters:
        databases.setdefault(database, {})[table] = condition
    inner = "".join(
        f"<{database}>"
        + "".join(f"<{table}><filter>{escape(c)}</filter></{table}>" for table, c in tables.items())
        + f"</{database}>"
        for database, tables in databases.items()
    )
    return (
        "<clickhouse><profiles><default><implicit_select>0</implicit_select></default></profiles>"
        "<quotas><default/></quotas><users><default>"
        "<password/><networks><ip>::/0</ip></networks><profile>default</profile><quota>default</quota>"
        "<access_management>1</access_management><named_collection_control>1</named_collection_control>"
        f"<databases>{inner}</databases></default></users></clickhouse>\n"
    )
