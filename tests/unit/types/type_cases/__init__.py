"""Type cases, one module per source system: data only. The runner is ``test_type_cases.py``."""

from tests.unit.types.type_cases import connect, mysql, postgres, propagated, singlestore, sqlserver
from tests.unit.types.type_cases.case import Case

__all__ = ["CASES", "Case"]

CASES: dict[str, list[Case]] = {
    "sqlserver": sqlserver.CASES,
    "mysql": mysql.CASES,
    "postgres": postgres.CASES,
    "singlestore": singlestore.CASES,
    "propagated": propagated.CASES,
    "connect": connect.CASES,
}
