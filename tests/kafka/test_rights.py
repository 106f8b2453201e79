"""A user who has just the rights that docs/rights.md lists can do what the page says."""

import re
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from ch_sink.clickhouse import Client
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka.broker import LocalKafka
from tests.kafka.test_dead_letters import HISTORY, SOURCE, Stream
from tests.support.endpoint import settings_for
from tests.support.event import event, row
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


class Limited:
    """A server whose only user gets other rights with each restart."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clickhouse = EmbeddedClickHouse(folder)

    def restart(self, statements: list[str] | None) -> None:
        """None: all rights."""
        self.clickhouse.stop()
        config = self.folder / "ch_sink" / "config.d" / "users.xml"
        config.unlink(missing_ok=True)
        if statements is not None:
            users, config = self.folder / "least.xml", config
            given = "".join(f"<query>{escape(_for_default(s))}</query>" for s in [*statements, *EMBEDDED])
            users.write_text(
                "<clickhouse><profiles><default><implicit_select>0</implicit_select></default></profiles>"
                "<quotas><default/></quotas><users><default><password></password><networks><ip>::/0</ip></networks>"
                f"<profile>default</profile><quota>default</quota><grants>{given}</grants></default></users></clickhouse>"
            )
            config.parent.mkdir(parents=True, exist_ok=True)
            config.write_text(
                f"<clickhouse><user_directories replace='1'><users_xml><path>{users}</path></users_xml>"
                "</user_directories></clickhouse>"
            )
        self.clickhouse.start()


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
    limited.restart(None)
    client = Client(settings_for(limited.clickhouse.url))
    client.command("DROP DATABASE IF EXISTS shop SYNC")
    client.command("CREATE DATABASE shop")
    yield Place(tmp_path, kafka, limited.clickhouse, client, "shop")
    client.close()


@pytest.mark.parametrize("engine", [pytest.param("replacing", marks=pytest.mark.long), "collapsing"])
def test_a_job_and_the_commands_beside_it(place: Place, limited: Limited, engine: str) -> None:
    stream = Stream(place, engine)
    stream.alter("Nullable(Int32)")
    limited.restart(RUN)
    stream.produce([(7, event("c", row(7, 7), pos=20)), (1, event("u", row(1, 6), row(1, 5), pos=21))])
    stream.run()
    for words in (("check",), ("status", "--json"), ("pause",), ("resume",)):
        done = inside(words[0], stream.config, *words[1:])
        assert done.returncode == 0, done.stdout + done.stderr
    stream.ask("retry")
    stream.ask("list")
    limited.restart(None)
    assert stream.rows == SOURCE | {1: 6, 7: 7}


@pytest.mark.parametrize("missing", [g for g in RUN if "DELETE" not in g])
@pytest.mark.long
def test_none_of_them_can_be_left_out(place: Place, limited: Limited, missing: str) -> None:
    stream = Stream(place, "collapsing")
    limited.restart([g for g in RUN if g != missing])
    stream.produce([(7, event("c", row(7, 7), pos=20)), (1, event("u", row(1, 6), row(1, 5), pos=21))])
    failed = False
    try:
        stream.run()
        stream.ask("list")
    except Exception:  # noqa: BLE001 - whatever it is that needs the right
        failed = True
    assert failed or "system.processes" in missing or "columns" in missing or "handover" in missing


def test_new_columns_and_truncates(place: Place, limited: Limited) -> None:
    stream = Stream(place, "replacing")
    text = stream.config.read_text()
    stream.config.write_text(f"{text}evolve: add_columns\ntruncate: apply\n")
    limited.restart([*RUN, *EVOLVE, *TRUNCATE])
    stream.produce([(8, event("c", row(8, 8) | {"extra": 5}, pos=30))])
    stream.run()
    limited.restart(None)
    assert place.rows("SELECT extra FROM {db}.t_current WHERE id = 8") == [{"extra": 5}]
    limited.restart([*RUN, *EVOLVE, *TRUNCATE])
    stream.produce([(0, event("t", pos=40)), (9, event("c", row(9, 9), pos=41))])
    stream.run()
    limited.restart(None)
    assert stream.rows == {9: 9}


def test_init(place: Place, limited: Limited) -> None:
    stream = Stream(place, "replacing")
    place.client.command("DROP DATABASE shop SYNC")
    limited.restart(INIT)
    done = inside("init", stream.config, "--apply")
    assert done.returncode == 0, done.stdout + done.stderr
    limited.restart([*INIT, *RUN])
    done = inside("init", stream.config, "--apply")
    assert done.returncode == 0, done.stdout + done.stderr
    limited.restart(None)
    assert len(HISTORY) == stream.produced
    assert place.count("t") == 0
