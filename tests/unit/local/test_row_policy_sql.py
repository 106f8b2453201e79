"""Row policy statements in all their forms, and what they become for chDB."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from ch_sink.local.clickhouse.http_errors import QueryError
from ch_sink.local.clickhouse.row_policies import RowPolicies, role_mark
from ch_sink.local.clickhouse.row_policy_sql import Target, parse_policy_statement


def test_create_with_every_clause() -> None:
    found = parse_policy_statement(
        b"CREATE ROW POLICY IF NOT EXISTS `p 1` ON shop.orders FOR SELECT "
        b"USING sign IN (1, 2) AND note != 'x TO y' AS RESTRICTIVE TO ALL EXCEPT admin, `b c`;"
    )
    assert found is not None
    assert found.verb == "CREATE"
    assert found.if_not_exists
    assert found.targets == (Target("p 1", "shop", "orders"),)
    assert found.condition == "sign IN (1, 2) AND note != 'x TO y'"
    assert found.restrictive is True
    assert (found.roles, found.excepted) == (("ALL",), ("admin", "b c"))


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("CREATE POLICY p ON t USING 1 TO r", [("p", "", "t")]),
        ("CREATE POLICY OR REPLACE p ON d.t USING 1", [("p", "d", "t")]),
        ("CREATE OR REPLACE ROW POLICY p ON d.t USING 1", [("p", "d", "t")]),
        ("DROP ROW POLICY IF EXISTS a, b ON t", [("a", "", "t"), ("b", "", "t")]),
        ("DROP ROW POLICY a ON t, b ON d.u", [("a", "", "t"), ("b", "d", "u")]),
        ("DROP ROW POLICY a ON t, d.u", [("a", "", "t"), ("a", "d", "u")]),
        ("ALTER ROW POLICY p ON t TO r", [("p", "", "t")]),
        ("SHOW CREATE ROW POLICY p ON t", [("p", "", "t")]),
        ("SHOW ROW POLICIES ON d.t", [("", "d", "t")]),
        ("SHOW POLICIES", []),
    ],
)
def test_names_and_tables(text: str, targets: list[tuple[str, str, str]]) -> None:
    found = parse_policy_statement(text.encode())
    assert found is not None
    assert [(t.name, t.database, t.table) for t in found.targets] == targets


@pytest.mark.parametrize(
    "text", ["CREATE TABLE policy (a Int8)", "SHOW TABLES", "DROP VIEW p", "ALTER TABLE t ADD ROW"]
)
def test_other_statements_are_left_alone(text: str) -> None:
    assert parse_policy_statement(text.encode()) is None


@pytest.mark.parametrize(
    "text", ["CREATE ROW POLICY p USING 1", "CREATE ROW POLICY p ON t AS BEST", "DROP ROW POLICY p ON"]
)
def test_damaged_statements_are_syntax_errors(text: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse_policy_statement(text.encode())
    assert caught.value.code == 62


@pytest.fixture
def policies(tmp_path: Path) -> RowPolicies:
    return RowPolicies(tmp_path / "row_policies.json", "default")


def carry_out(policies: RowPolicies, text: str) -> None:
    statement = parse_policy_statement(text.encode())
    assert statement is not None
    policies.change(statement, "shop", lambda xml: None)


def condition(policies: RowPolicies, table: str = "t") -> str | None:
    return ElementTree.fromstring(policies.xml()).findtext(f"users/default/databases/shop/{table}/filter")


def test_policies_survive_in_their_file(policies: RowPolicies, tmp_path: Path) -> None:
    carry_out(policies, "CREATE ROW POLICY p ON t USING a < 1 AND b = '&<' TO ALL")
    again = RowPolicies(tmp_path / "row_policies.json", "default")
    again.load()
    assert condition(again) == "a < 1 AND b = '&<'"


def test_policies_of_one_table_combine_as_clickhouse_combines_them(policies: RowPolicies) -> None:
    carry_out(policies, "CREATE ROW POLICY p ON t USING a = 1 TO ALL")
    carry_out(policies, "CREATE ROW POLICY q ON t USING a = 2 TO default")
    carry_out(policies, "CREATE ROW POLICY r ON t USING b = 3 AS RESTRICTIVE TO ALL")
    assert condition(policies) == "(b = 3) AND ((a = 1) OR (a = 2))"


def test_a_policy_for_a_role_looks_for_the_role(policies: RowPolicies) -> None:
    carry_out(policies, "CREATE ROW POLICY p ON t USING a = 1 TO reader")
    found = condition(policies)
    assert found is not None
    assert role_mark("reader") in found


def test_policies_that_do_not_concern_this_user_filter_nothing(policies: RowPolicies) -> None:
    carry_out(policies, "CREATE ROW POLICY p ON t USING a = 1 TO ALL EXCEPT default")
    carry_out(policies, "CREATE ROW POLICY q ON t USING NONE TO ALL")
    carry_out(policies, "CREATE ROW POLICY r ON t USING a = 1")
    assert condition(policies) is None


def test_existing_and_missing_policies(policies: RowPolicies) -> None:
    carry_out(policies, "CREATE ROW POLICY p ON t USING 1 TO ALL")
    with pytest.raises(QueryError) as caught:
        carry_out(policies, "CREATE ROW POLICY p ON t USING 0 TO ALL")
    assert caught.value.code == 493
    carry_out(policies, "CREATE ROW POLICY IF NOT EXISTS p ON t USING 0 TO ALL")
    assert condition(policies) == "1"
    carry_out(policies, "CREATE ROW POLICY OR REPLACE p ON t USING 0 TO ALL")
    assert condition(policies) == "0"
    carry_out(policies, "DROP ROW POLICY p ON t")
    assert condition(policies) is None
    with pytest.raises(QueryError) as caught:
        carry_out(policies, "DROP ROW POLICY p ON t")
    assert caught.value.code == 523
    carry_out(policies, "DROP ROW POLICY IF EXISTS p ON t")


def test_a_change_that_the_engine_refuses_is_taken_back(policies: RowPolicies) -> None:
    carry_out(policies, "CREATE ROW POLICY p ON t USING a = 1 TO ALL")
    statement = parse_policy_statement(b"DROP ROW POLICY p ON t")
    assert statement is not None
    opened: list[str] = []

    def refuse(xml: str) -> None:
        opened.append(xml)
        if len(opened) == 1:
            raise QueryError.make(999, "KEEPER_EXCEPTION", "no")

    before = policies.xml()
    with pytest.raises(QueryError):
        policies.change(statement, "shop", refuse)
    assert opened[1] == before == policies.xml()
