"""What ``check`` says of tables for documents."""

from ch_sink.discovery.value_findings import document_findings
from ch_sink.model.policy import Policy, policy_of
from ch_sink.table.model import TargetTable
from ch_sink.types.column import Column
from tests.support.decoding import replacing

ID = Column("_id", "String")


def said(table: TargetTable, policy: Policy | None = None) -> list[tuple[str, str, str | None]]:
    found = list(document_findings(table, policy or policy_of()))
    assert {f.title for f in found} == {"documents"}
    return [(f.level, f.detail, f.remedy) for f in found]


def test_a_text_column_for_the_document_is_fine() -> None:
    table = replacing((ID, Column("city", "String"), Column("document", "String")), ("_id",))
    [(level, detail, _)] = said(table, policy_of(document_columns=(("city", "address.city"),)))
    assert level == "ok"
    assert "document holds the whole document;" in detail
    assert "city ← address.city" in detail


def test_another_column_may_hold_the_document() -> None:
    table = replacing((ID, Column("doc", "String")), ("_id",))
    [(level, detail, _)] = said(table, policy_of(document_column="doc"))
    assert (level, detail[:39]) == ("ok", "doc holds the whole document; _id ← _id")


def test_a_json_column_gets_a_warning() -> None:
    table = replacing((ID, Column("document", "JSON")), ("_id",))
    assert [level for level, _, _ in said(table)] == ["ok", "warn"]
    assert "drops nulls and empty documents" in said(table)[1][1]


def test_a_table_without_the_document_is_warned_of_with_the_statement_that_adds_it() -> None:
    [(level, detail, remedy)] = said(replacing((ID, Column("tags", "Array(String)")), ("_id",), "t"))
    assert level == "warn"
    assert "only these fields: _id ← _id, tags ← tags" in detail
    assert remedy is not None
    assert "ADD COLUMN IF NOT EXISTS `document` String" in remedy


def test_a_configured_column_that_is_not_there_and_one_of_a_wrong_type_fail() -> None:
    table = replacing((ID, Column("document", "String")), ("_id",))
    [(level, detail, _)] = said(table, policy_of(document_columns=(("city", "address.city"),)))
    assert (level, "city" in detail) == ("fail", True)
    [(level, detail, _)] = said(replacing((ID, Column("t", "Tuple(Int32, String)")), ("_id",)))
    assert (level, "'t'" in detail) == ("fail", True)
