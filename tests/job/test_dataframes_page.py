"""The examples of docs/dataframes.md, run as they stand there."""

import re
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests.support.frames import Shelf, change, needs_data_sources, on_classic
from tests.support.sink import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.slow]

PAGE = (ROOT / "docs" / "dataframes.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
[DDL] = re.findall(r"```sql\n(CREATE TABLE .*?);\n```", PAGE, re.DOTALL)


def example(name: str) -> str:
    return next(block for block in BLOCKS if name in block)


@needs_data_sources
@on_classic
def test_the_page(session: Any, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = session
    monkeypatch.chdir(shelf.folder)
    bronze = str(shelf.write({0: [change(1, 1), change(2, 2), change(1, 3, "paid", "u")]}).parent)
    feed = str(shelf.folder / "feed.parquet")
    given = {"url": shelf.url, "database": shelf.database}
    exec(example("spark.read.parquet(bronze)"), {"spark": spark, "bronze": bronze, **given})
    assert shelf.rows() == {1: "paid", 2: "new"}
    (shelf.folder / "orders.yaml").write_text(yaml.safe_dump(shelf.config()))
    exec(example("history("), {"spark": spark})
    rows = [
        {"id": 1, "status": "new", "_change_type": "insert", "_commit_version": 1},
        {"id": 1, "status": "new", "_change_type": "update_preimage", "_commit_version": 2},
        {"id": 7, "status": "paid", "_change_type": "update_postimage", "_commit_version": 2},
    ]
    pq.write_table(pa.Table.from_pylist(rows), feed)
    shelf.client.command(f"TRUNCATE TABLE {shelf.database}.ch_sink_ledger")
    shelf.client.command(f"DROP TABLE {shelf.database}.orders SYNC")
    shelf.client.command(DDL.replace("shop.", f"{shelf.database}."))
    exec(example("changes("), {"spark": spark, "feed": feed, **given})
    assert shelf.rows() == {7: "paid"}
    stored = shelf.count()
    exec(example("register"), {"spark": spark, "feed": feed, **given})
    assert shelf.count() == stored
