"""The row policy statements that the embedded server takes, and what they become for chDB."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from ch_sink.local.clickhouse.engine import QueryError
from ch_sink.local.clickhouse.row_policies import RowPolicies, parse_policy_statement, role_mark


def test_create_with_every_clause() -> None:
    found = parse_policy_statement(
        b"CREATE ROW POLICY IF NOT EXISTS `p 1` ON shop.`orders` "
        b"USING sign IN (1, 2) AND note != 'x TO y' TO ALL EXCEPT admin, `b c`"
    )
    assert found.place == ("p 1", "shop", "orders")
    assert found.condition == "sign IN (1, 2) AND note != 'x TO y'"
    assert (found.lenient, found.roles, found.excepted) == (True, ("ALL",), ("admin", "b c"))


@pytest.mark.parametrize("text", ["CREATE TABLE policy (a Int8)", "DROP VIEW p", "ALTER TABLE t ADD POLICY"])
def test_other_statements_are_left_alone(text: str) -> None:
    assert parse_policy_statement(text.encode()) is None


@pytest.mark.parametrize(
    "text",
    [
        "CREATE ROW POLICY p USING 1",
        "CREATE ROW POLICY p ON d.t AS RESTRICTIVE USING 1 TO ALL",
        "ALTER ROW POLICY p ON d.t TO r",
        "SHOW ROW POLICIES ON d.t",
        "DROP ROW POLICY p ON",
        "CREATE ROW POLICY p ON d.`odd name` USING 1 TO ALL",
    ],
)
def test_other_forms_are_refused_by_name(text: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse_policy_statement(text.encode())
    assert caught.value.code == 48


@pytest.fixture
def policies(tmp_path: Path) -> RowPolicies:
    return RowPolicies(tmp_path / "row_policies.json", "default")


def carry_out(policies: RowPolicies, text: str) -> None:
    statement = parse_policy_statement(text.encode())
    assert statement is not None
    policies.change(statement, lambda xml: None)


def condition(policies: RowPolicies) -> str | None:
    return ElementTree.fromstring(policies.xml()).findtext("users/default/databases/shop/t/filter")


def test_policies_survive_in_their_file(policies: RowPolicies, tmp_path: Path) -> None:
    carry_out(policies, "CREATE ROW POLICY p ON shop.t USING a < 1 AND b = '&<' TO ALL")
    again = RowPolicies(tmp_path / "row_policies.json", "default")
    again.load()
    assert condition(again) == "a < 1 AND b = '&<'"


def test_policies_of_one_table_show_what_any_of_them_shows(policies: RowPolicies) -> None:
    carry_out(policies, "CREATE ROW POLICY p ON shop.t USING a = 1 TO ALL")
    carry_out(policies, "CREATE ROW POLICY q ON shop.t USING a = 2 TO default")
    assert condition(policies) == "((NOT 1) AND (NOT 1)) OR (1 AND (a = 1)) OR (1 AND (a = 2))"


def test_a_policy_for_a_role_looks_for_the_role(policies: RowPolicies) -> None:
    carry_out(policies, "CREATE ROW POLICY p ON shop.t USING a = 1 TO reader, `other one`")
    found = condition(policies)
    assert found is not None
    assert role_mark("reader") in found
    assert role_mark("other one") in found


def test_policies_that_do_not_concern_this_user_filter_nothing(policies: RowPolicies) -> None:
    carry_out(policies, "CREATE ROW POLICY p ON shop.t USING a = 1 TO ALL EXCEPT default")
    assert condition(policies) is None


def test_existing_and_missing_policies(policies: RowPolicies) -> None:
    carry_out(policies, "CREATE ROW POLICY p ON shop.t USING 1 TO ALL")
    with pytest.raises(QueryError) as caught:
        carry_out(policies, "CREATE ROW POLICY p ON shop.t USING 0 TO ALL")
    assert caught.value.code == 493
    carry_out(policies, "CREATE ROW POLICY IF NOT EXISTS p ON shop.t USING 0 TO ALL")
    assert condition(policies) == "1"
    carry_out(policies, "CREATE ROW POLICY OR REPLACE p ON shop.t USING 0 TO ALL")
    assert condition(policies) == "0"
    carry_out(policies, "DROP ROW POLICY p ON shop.t")
    assert condition(policies) is None
    with pytest.raises(QueryError) as caught:
        carry_out(policies, "DROP ROW POLICY p ON shop.t")
    assert caught.value.code == 523
    carry_out(policies, "DROP ROW POLICY IF EXISTS p ON shop.t")


def test_a_change_that_the_engine_refuses_is_taken_back(policies: RowPolicies) -> None:
    carry_out(policies, "CREATE ROW POLICY p ON shop.t USING a = 1 TO ALL")
    statement = parse_policy_statement(b"DROP ROW POLICY p ON shop.t")
    assert statement is not None
    opened: list[str] = []

    def refuse(xml: str) -> None:
        opened.append(xml)
        if len(opened) == 1:
            raise QueryError.make(999, "KEEPER_EXCEPTION", "no")

    before = policies.xml()
    with pytest.raises(QueryError):
        policies.change(statement, refuse)
    assert opened[1] == before == policies.xml()
