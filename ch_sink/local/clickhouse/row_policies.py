"""Row policies of the embedded engine: kept in a file, and given to chDB as the filters of its users file.

chDB reads one filter per table for its one user, when it opens. So all policies of a table become one condition, as
ClickHouse combines them: any of the permissive ones and all of the restrictive ones. A policy ``TO`` a role applies to
a request that asks for the role (the URL parameter ``role``), which the condition sees in ``log_comment``.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from xml.sax.saxutils import escape

from ch_sink.errors import ConfigError
from ch_sink.local.clickhouse.http_errors import QueryError
from ch_sink.local.clickhouse.row_policy_sql import PolicyStatement, Target
from ch_sink.local.clickhouse.sql_text import quote_identifier, quote_string

__all__ = ["Policy", "RowPolicies", "role_mark", "users_xml"]

_XML_NAME = re.compile(r"^[A-Za-z_][\w-]*$", re.ASCII)


@dataclass(frozen=True)
class Policy:
    """One row policy. ``roles`` may hold ``ALL``; ``condition`` is "" when the policy filters nothing."""

    name: str
    database: str
    table: str
    condition: str = ""
    restrictive: bool = False
    roles: tuple[str, ...] = ()
    excepted: tuple[str, ...] = ()

    @property
    def statement(self) -> str:
        """The CREATE statement that makes this policy."""
        table = f"{quote_identifier(self.database)}.{quote_identifier(self.table)}"
        parts = [f"CREATE ROW POLICY {quote_identifier(self.name)} ON {table} FOR SELECT"]
        if self.condition:
            parts.append(f"USING {self.condition}")
        parts.append("AS restrictive" if self.restrictive else "AS permissive")
        if self.roles:
            parts.append("TO " + ", ".join(r if r == "ALL" else quote_identifier(r) for r in self.roles))
        if self.excepted:
            parts.append("EXCEPT " + ", ".join(map(quote_identifier, self.excepted)))
        return " ".join(parts)


_CONSTRAINTS = "".join(
    f"<{name}><const/></{name}>"
    for name in (
        *("additional_table_filters", "additional_result_filter", "parallel_replicas_custom_key"),
        *("format_schema", "format_template_row", "format_template_resultset"),
    )
)
"""Settings whose values name a file, or are expressions that are never seen as part of a statement."""


class RowPolicies:
    """The policies of one data directory, in ``file``; ``user`` is who the requests are authenticated as."""

    def __init__(self, file: Path, user: str) -> None:
        self._file = file
        self._users = {"default", user, "CURRENT_USER"}
        self._lock = threading.Lock()
        self._policies: tuple[Policy, ...] = ()

    def load(self) -> None:
        """Read the file, if there is one. Raises ConfigError when it is damaged."""
        if not self._file.exists():
            return
        try:
            rows = json.loads(self._file.read_text(encoding="utf-8"))
            self._policies = tuple(
                Policy(**{**row, "roles": tuple(row["roles"]), "excepted": tuple(row["excepted"])}) for row in rows
            )
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"The row policies in {self._file} cannot be read: {error}",
                hint="Restore the file, or remove it and create the policies again.",
            ) from None

    def xml(self) -> str:
        """The users file for the current policies."""
        return users_xml(self._filters(self._policies))

    def answer(self, statement: PolicyStatement, database: str) -> str:
        """The query that answers a SHOW statement."""
        targets = {(t.database or database, t.table, t.name) for t in statement.targets}
        if statement.verb == "SHOW":
            tables = {(d, t) for d, t, _ in targets}
            names = [p.name if tables else f"{p.name} ON {p.database}.{p.table}" for p in self._policies
                     if not tables or (p.database, p.table) in tables]  # fmt: skip
            return f"SELECT arrayJoin(CAST([{', '.join(map(quote_string, names))}] AS Array(String))) AS name"
        found = [p.statement for p in self._policies if (p.database, p.table, p.name) in targets]
        if len(found) < len(targets):
            missing = targets - {(p.database, p.table, p.name) for p in self._policies}
            raise _unknown(*sorted(missing)[0])
        return f"SELECT arrayJoin([{', '.join(map(quote_string, found))}]) AS `CREATE ROW POLICY`"

    def change(self, statement: PolicyStatement, database: str, reopen: Callable[[str], None]) -> None:
        """Carry out CREATE, ALTER or DROP: ``reopen`` the engine with the new users file, then keep the change.

        Raises QueryError for a policy that exists already or does not exist, and for names that chDB cannot take.
        """
        with self._lock:
            changed = list(self._policies)
            for target in statement.targets:
                _change_one(changed, statement, replace(target, database=target.database or database))
            if changed == list(self._policies):
                return
            xml = users_xml(self._filters(changed))
            before = self.xml()
            try:
                reopen(xml)
            except Exception:
                reopen(before)
                raise
            self._policies = tuple(changed)
            self._save()

    def _save(self) -> None:
        fresh = self._file.with_suffix(".new")
        with fresh.open("w", encoding="utf-8") as file:
            json.dump([asdict(p) for p in self._policies], file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._file)

    def _filters(self, policies: Iterable[Policy]) -> list[tuple[str, str, str]]:
        tables: dict[tuple[str, str], list[Policy]] = {}
        for policy in policies:
            if policy.condition and policy.roles:
                tables.setdefault((policy.database, policy.table), []).append(policy)
        return [(*table, text) for table, group in tables.items() if (text := self._condition(group))]

    def _condition(self, policies: Sequence[Policy]) -> str:
        permissive = [(self._applies(p), p.condition) for p in policies if not p.restrictive]
        restrictive = [(self._applies(p), p.condition) for p in policies if p.restrictive]
        permissive = [(a, c) for a, c in permissive if a != "0"]
        parts = [c if a == "1" else f"(NOT {a}) OR ({c})" for a, c in restrictive if a != "0"]
        if permissive:
            if len(permissive) == 1 and permissive[0][0] == "1":
                parts.append(permissive[0][1])
            elif all(a == "1" for a, _ in permissive):
                parts.append(" OR ".join(f"({c})" for _, c in permissive))
            else:
                nobody = " AND ".join(f"(NOT {a})" for a, _ in permissive)
                parts.append(f"({nobody}) OR " + " OR ".join(f"({a} AND ({c}))" for a, c in permissive))
        return parts[0] if len(parts) == 1 else " AND ".join(f"({part})" for part in parts)

    def _applies(self, policy: Policy) -> str:
        """When the policy applies: "1", "0", or a condition on the request's roles."""
        if "ALL" in policy.roles:
            return "0" if self._users & set(policy.excepted) else "1"
        if self._users & set(policy.roles):
            return "1"
        asked = [f"position(getSetting('log_comment'), {quote_string(role_mark(role))}) > 0" for role in policy.roles]
        return asked[0] if len(asked) == 1 else "(" + " OR ".join(asked) + ")"


def role_mark(role: str) -> str:
    """How ``log_comment`` states a request's role."""
    return f" role={role};"


def _change_one(policies: list[Policy], statement: PolicyStatement, target: Target) -> None:
    at = next(
        (
            i
            for i, p in enumerate(policies)
            if (p.name, p.database, p.table) == (target.name, target.database, target.table)
        ),
        None,
    )
    if statement.verb == "CREATE":
        if at is not None and statement.if_not_exists:
            return
        if at is not None and not statement.or_replace:
            raise QueryError.make(
                493,
                "ACCESS_ENTITY_ALREADY_EXISTS",
                f"row policy `{target.name} ON {target.database}.{target.table}` already exists in users_xml",
            )
        for name in (target.database, target.table):
            if _XML_NAME.match(name) is None:
                raise QueryError.make(
                    48,
                    "NOT_IMPLEMENTED",
                    f"The embedded engine takes no row policy on a table or database named {name!r}",
                )
        policy = _with_clauses(Policy(target.name, target.database, target.table), statement)
        if at is None:
            policies.append(policy)
        else:
            policies[at] = policy
        return
    if at is None:
        if statement.if_exists:
            return
        raise _unknown(target.database, target.table, target.name)
    if statement.verb == "DROP":
        del policies[at]
    else:
        policies[at] = _with_clauses(policies[at], statement)


def _with_clauses(policy: Policy, statement: PolicyStatement) -> Policy:
    if statement.condition is not None:
        policy = replace(policy, condition=statement.condition)
    if statement.restrictive is not None:
        policy = replace(policy, restrictive=statement.restrictive)
    if statement.roles is not None:
        policy = replace(policy, roles=statement.roles, excepted=statement.excepted)
    if statement.rename_to is not None:
        policy = replace(policy, name=statement.rename_to)
    return policy


def _unknown(database: str, table: str, name: str) -> QueryError:
    return QueryError.make(
        523, "UNKNOWN_ROW_POLICY", f"There is no row policy `{name} ON {database}.{table}` in users_xml"
    )


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
        f"<clickhouse><profiles><default><implicit_select>0</implicit_select><constraints>{_CONSTRAINTS}</constraints>"
        "</default></profiles><quotas><default/></quotas><users><default>"
        "<password/><networks><ip>::/0</ip></networks><profile>default</profile><quota>default</quota>"
        "<access_management>1</access_management><named_collection_control>1</named_collection_control>"
        f"<databases>{inner}</databases></default></users></clickhouse>\n"
    )
