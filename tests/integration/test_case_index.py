"""Where each numbered case is tested: every number has a test of its name, and the names of other tests hold.

| Case | What it is | Tests |
|---|---|---|
| 01 | several changes of one key in one transaction | test_cases, test_explain |
| 02 | a long transaction commits late | test_cases, test_explain |
| 03 | snapshot rows against the first update | test_cases, test_explain |
| 04 | rotation, RESET, failover | test_cases, test_explain; unit/order/test_sequence |
| 05 | a crash between insert and commit | test_cases, test_busy, test_explain; kafka/test_kills, job/test_job |
| 06 | a collapsing update cancels exactly the stored row | test_cases, test_explain |
| 07 | key changes, swaps | test_cases, test_busy, test_explain |
| 08 | deletes | test_cases, test_explain |
| 09 | unavailable values | test_cases, test_recorded, test_explain |
| 10 | truncates | test_cases, test_explain; unit/pipeline/test_plan_truncate |
| 11 | schema change inside a batch | test_cases_columns, test_explain |
| 12 | times | test_cases_values, test_explain; unit/types/test_calendar |
| 13 | numbers | test_cases_values, test_explain; unit/types/test_decimals |
| 14 | engine detection, tables without a key | test_cases, test_explain; unit/table/test_engine_full |
| 15 | what goes wrong | test_cases_faults, test_explain; job/test_job, unit/clickhouse/test_writer |
| 16 | many rows of a key, many table partitions | test_cases, test_explain |
| 17 | consumer group, lag, stages | kafka/test_case_operation, test_explain; unit/observe/test_observe |
"""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent


def tabled() -> dict[int, list[str]]:
    """Number → modules of its tests, as the table above says."""
    rows = re.findall(r"^\| (\d\d) \| [^|]+ \| ([^|]+) \|$", __doc__ or "", re.MULTILINE)
    return {int(number): re.split(r"[,;] ", where) for number, where in rows}


def found() -> dict[int, set[str]]:
    """Number → modules that have a test of its name."""
    numbers: dict[int, set[str]] = {}
    for module in sorted(TESTS.rglob("test_*.py")):
        name = str(module.relative_to(TESTS).with_suffix("")).removeprefix("integration/")
        for number in re.findall(r"^def test_case_(\d\d)_", module.read_text(encoding="utf-8"), re.MULTILINE):
            numbers.setdefault(int(number), set()).add(name)
    return numbers


def test_every_case_has_a_test_of_its_number() -> None:
    assert sorted(tabled()) == list(range(1, 18))
    assert {number: where <= set(tabled()[number]) for number, where in found().items()} == dict.fromkeys(
        range(1, 18), True
    )


def test_the_modules_of_the_table_are_there() -> None:
    for where in tabled().values():
        for module in where:
            path = TESTS / f"{module}.py" if "/" in module else TESTS / "integration" / f"{module}.py"
            assert path.exists(), module
