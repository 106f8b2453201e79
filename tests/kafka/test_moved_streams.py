"""Streams that move between files and jobs: split, merged, from files of their own to one file, and back.

How far each stream has come is in the ledger under its name, whichever file and job it is in. So nothing is read twice
and nothing is lost, also if the job that had the stream still runs when the next one takes it over.
"""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from ch_sink.clickhouse import Client
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from tests.support.kafka import fresh_topic
from tests.support.live_job import LiveJob
from tests.support.shop import Shop, changing
from tests.support.sink import inside

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.slow, pytest.mark.long]

ENGINES = {"orders": "replacing", "users": "collapsing", "carts": "versioned", "audit": "append", "log_lines": "append"}


@pytest.fixture
def shop(tmp_path: Path, kafka: LocalKafka, clickhouse: EmbeddedClickHouse, client: Client, database: str) -> Shop:
    made = Shop(tmp_path, kafka, clickhouse, client, database, fresh_topic("moved"))
    for table, engine in ENGINES.items():
        made.add(table, engine, partitions=2)
    return made


def each(shop: Shop, *tables: str) -> list[Path]:
    """A file of its own for each table; streams have the names that they have by default."""
    return [shop.file(table, stream="", on_data_loss="fail") for table in tables]


def together(shop: Shop, name: str, topics: object) -> Path:
    """One file of these topics: a pattern or a list."""
    settings = {
        "kafka": {"topics": topics, "bootstrap.servers": shop.kafka.bootstrap},
        "clickhouse": {"url": shop.clickhouse.url, "database": shop.database, "table": "{table}"},
        "trigger_interval": "200ms",
    }
    path = shop.folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


def whole(shop: Shop) -> Path:
    return together(shop, "whole", rf"{shop.prefix}\..*")


def halves(shop: Shop) -> tuple[Path, Path]:
    """A pattern, and a list of the rest."""
    return (
        together(shop, "some", rf"{shop.prefix}\.(orders|audit)"),
        together(shop, "others", [shop.topic(t) for t in ("users", "carts", "log_lines")]),
    )


def change(shop: Shop, events: int = 15) -> None:
    for table in shop.rows:
        shop.change(table, events)
    shop.flush()


def expect_once(shop: Shop, files: Sequence[Path]) -> None:
    """The ranges that were read of each topic cover it once, and each topic is one stream."""
    shown = inside("status", *files, "--json")
    assert shown.returncode == 0, shown.stderr
    assert {s["topic"]: s["lag"] for s in json.loads(shown.stdout)["streams"]} == {shop.topic(t): 0 for t in shop.rows}
    ledger = f"{shop.database}.ch_sink_ledger"
    read = shop.client.rows(
        f"SELECT topic, sum(end_offset - start_offset) AS offsets FROM {ledger} FINAL WHERE entry = 'result' "
        "GROUP BY topic"
    )
    assert {r["topic"]: r["offsets"] for r in read} == {shop.topic(t): n for t, n in shop.sent.items()}
    names = shop.client.rows(f"SELECT uniqExact(stream) AS n FROM {ledger} WHERE topic != ''")
    assert names[0]["n"] == len(shop.rows), "a stream that moves keeps its name"


def test_streams_move_from_file_to_file_and_from_job_to_job(shop: Shop) -> None:
    """One job ends before the next begins; changes come while there is none."""
    some, others = halves(shop)
    lives: list[list[list[Path]]] = [
        [each(shop, *ENGINES)],  # one job, a file for each topic
        [[whole(shop)]],  # one file
        [[some], [others]],  # two jobs
        [[some, others]],  # one job of two files
        [[*each(shop, "users", "carts"), some], each(shop, "log_lines")[:1]],  # mixed, log_lines has a job of its own
        [[whole(shop)]],
    ]
    change(shop)
    for jobs in lives:
        with ExitStack() as running:
            live = [running.enter_context(LiveJob(files)) for files in jobs]
            change(shop)
            live[0].until(lambda: not shop.differences())
        assert [job.failures for job in live] == [{}] * len(live)
        expect_once(shop, [whole(shop)])
        change(shop)
    with LiveJob([whole(shop)]) as last:
        last.until(lambda: not shop.differences())
    expect_once(shop, [whole(shop)])


def test_streams_move_while_the_job_that_had_them_still_runs(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another host: the newer job owns them; the older one stops them and stores nothing any more."""
    # On one host, a job whose process is alive keeps its streams.
    monkeypatch.setattr("ch_sink.stream.claims.live", lambda *_: False)
    some, others = halves(shop)
    lives: list[list[list[Path]]] = [[each(shop, *ENGINES)], [[whole(shop)]], [[some], [others]], [[some, others]]]
    with ExitStack() as running, changing(shop, every=0.01):
        before: list[LiveJob] = []
        for jobs in lives:
            now = [running.enter_context(LiveJob(files)) for files in jobs]
            for job in now:
                job.until(lambda job=job: {s.state for s in job.states().values()} == {"running"})
                seen = {s.name: s.summary.counts.records for s in job.job.streams}
                job.until(
                    lambda job=job, seen=seen: all(s.summary.counts.records > seen[s.name] for s in job.job.streams)
                )
            for job in before:
                now[0].until(lambda job=job: {s.state for s in job.states().values()} == {"stopped"})
            before = now
    # Its owners have ended as well.
    with LiveJob([whole(shop)]) as last:
        last.until(lambda: not shop.differences())
    assert last.failures == {}
    expect_once(shop, [whole(shop)])
