"""A user who has just the rights that docs/rights.md lists can do what the page says."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ch_sink.clickhouse import Client
from ch_sink.local.kafka import LocalKafka
from tests.kafka.test_dead_letters import HISTORY, SOURCE, Stream
from tests.support.endpoint import settings_for
from tests.support.event import event, row
from tests.support.rights import Limited
from tests.support.sink import ROOT, Place, inside

pytestmark = [pytest.mark.integration, pytest.mark.kafka]

EMBEDDED = ["GRANT READ ON FILE"]
"""What the embedded endpoint needs besides: it hands the body of a request to its engine as a file."""
PAGE = (ROOT / "docs" / "rights.md").read_text(encoding="utf-8")


def grants(heading: str) -> list[str]:
    """The statements below a heading of the page."""
    text = PAGE.partition(f"{heading}\n")[2]
    block = re.search(r"```sql\n(.*?)```", text, re.DOTALL)
    assert block, heading
    return [line.rstrip(";") for line in block[1].splitlines()]


RUN = grants("## ClickHouse: a job and the commands beside it")
EVOLVE, TRUNCATE, INIT = (
    grants(h)
    for h in ("### With `evolve: add_columns`", "### With `truncate: apply`, and for `purge`", "## ClickHouse: init")
)


def restart(limited: Limited, statements: list[str] | None) -> None:
    """Restart with these statements of the page; None: all rights."""
    limited.restart(statements and [*(_for_default(s) for s in statements), *EMBEDDED])


def _for_default(statement: str) -> str:
    return statement.replace("shop.orders", "shop.t").replace(" TO ch_sink", "")


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limited]:
    made = Limited(tmp_path_factory.mktemp("limited"))
    made.clickhouse.start()
    yield made
    made.clickhouse.stop()


@pytest.fixture
def place(tmp_path: Path, kafka: LocalKafka, limited: Limited) -> Iterator[Place]:
    """With all rights at first."""
    restart(limited, None)
    client = Client(settings_for(limited.clickhouse.url))
    client.command("DROP DATABASE IF EXISTS shop SYNC")
    client.command("CREATE DATABASE shop")
    yield Place(tmp_path, kafka, limited.clickhouse, client, "shop")
    client.close()


@pytest.mark.parametrize("engine", ["collapsing", pytest.param("replacing", marks=pytest.mark.long)])
def test_a_job_and_the_commands_beside_it(place: Place, limited: Limited, engine: str) -> None:
    stream = Stream(place, engine)
    stream.alter("Nullable(Int32)")
    restart(limited, RUN)
    stream.produce([(7, event("c", row(7, 7), pos=20)), (1, event("u", row(1, 6), row(1, 5), pos=21))])
    stream.run()
    for words in (("check",), ("status", "--json"), ("pause",), ("resume",)):
        done = inside(words[0], stream.config, *words[1:])
        assert done.returncode == 0, done.stdout + done.stderr
    stream.ask("retry", code=0 if engine == "replacing" else 1)
    stream.ask("list")
    restart(limited, None)
    assert stream.rows == (SOURCE if engine == "replacing" else {3: 3}) | {1: 6, 7: 7}


@pytest.mark.parametrize("missing", [g for g in RUN if "DELETE" not in g])
@pytest.mark.long
def test_none_of_them_can_be_left_out(place: Place, limited: Limited, missing: str) -> None:
    stream = Stream(place, "collapsing")
    restart(limited, [g for g in RUN if g != missing])
    stream.produce([(7, event("c", row(7, 7), pos=20)), (1, event("u", row(1, 6), row(1, 5), pos=21))])
    failed = False
    try:
        stream.run()
        stream.ask("list")
    except Exception:  # noqa: BLE001 - whatever it is that needs the right
        failed = True
    assert failed or "system.processes" in missing or "columns" in missing or "handover" in missing


@pytest.mark.long
def test_new_columns_and_truncates(place: Place, limited: Limited) -> None:
    stream = Stream(place, "replacing")
    text = stream.config.read_text()
    stream.config.write_text(f"{text}evolve: add_columns\ntruncate: apply\n")
    restart(limited, [*RUN, *EVOLVE, *TRUNCATE])
    stream.produce([(8, event("c", row(8, 8) | {"extra": 5}, pos=30))])
    stream.run()
    restart(limited, None)
    assert place.rows("SELECT extra FROM {db}.t_current WHERE id = 8") == [{"extra": 5}]
    restart(limited, [*RUN, *EVOLVE, *TRUNCATE])
    stream.produce([(0, event("t", pos=40)), (9, event("c", row(9, 9), pos=41))])
    stream.run()
    restart(limited, None)
    assert stream.rows == {9: 9}


@pytest.mark.long
def test_init(place: Place, limited: Limited) -> None:
    stream = Stream(place, "replacing")
    place.client.command("DROP DATABASE shop SYNC")
    restart(limited, INIT)
    done = inside("init", stream.config, "--apply")
    assert done.returncode == 0, done.stdout + done.stderr
    restart(limited, [*INIT, *RUN])
    done = inside("init", stream.config, "--apply")
    assert done.returncode == 0, done.stdout + done.stderr
    restart(limited, None)
    assert len(HISTORY) == stream.produced
    assert place.count("t") == 0
