"""Kills and freezes real processes for a long time: `python -m tests.kill_run --kills 1000 --out FILE`.

Each engine has a stream and a job of its own over real Kafka and HTTP. A job is killed (SIGKILL) at a drawn moment of
a batch, or frozen (SIGSTOP) until the next job has taken over and stored something, and then wakes up. Now and then the
server is killed or frozen. Changes go on meanwhile. FILE holds what happened, as JSON.
"""

import argparse
import json
import logging
import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ch_sink.clickhouse import Client
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from tests.support.endpoint import settings_for
from tests.support.kafka import fresh_topic
from tests.support.live_job import JobProcess, LiveJob
from tests.support.shop import RoughShop, changing

ENGINES = ("replacing", "sign", "collapsing", "versioned", "append")
_LONGEST = 120.0
"""Seconds in which a job must begin a batch."""


def main() -> None:
    """Run the command line."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--kills", type=int, default=1000, help="SIGKILLs and SIGSTOPs of jobs, of all engines")
    given.add_argument("--rate", type=float, default=20.0, help="transactions a second of each table")
    given.add_argument("--seed", default="1")
    given.add_argument("--server", type=float, default=20.0, help="seconds between two server faults; 0: none")
    given.add_argument("--out", type=Path, required=True)
    chosen = given.parse_args()
    logging.disable(logging.CRITICAL)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ch_sink-kills-")))
        broker = stack.enter_context(LocalKafka(path=folder / "kafka", kind="kafka"))
        endpoint = stack.enter_context(EmbeddedClickHouse())
        client = Client(settings_for(endpoint.url))
        client.command("CREATE DATABASE kills")
        shop = RoughShop(folder, broker, endpoint, client, "kills", fresh_topic("kills"))
        began = time.monotonic()
        happened: Counter[str] = Counter()
        with struck(endpoint, chosen.server, chosen.seed, happened), changing(shop, 1 / chosen.rate):
            failed = {}
            try:
                kill_all(shop, ENGINES, chosen.kills // len(ENGINES), chosen.seed, happened, chosen.out)
            except AssertionError as error:  # what the others have stored is compared all the same
                failed = {"kills": str(error)}
        wrong = failed | ends_equal(shop)
        seconds = round(time.monotonic() - began)
        result = {"wrong": wrong, "seconds": seconds, "records": shop.records, **happened}
        chosen.out.write_text(json.dumps(result, default=str) + "\n")


def ends_equal(shop: RoughShop) -> dict[str, object]:
    """Let a last job read the rest; what differs then."""
    with LiveJob([shop.folder / f"{table}.yaml" for table in shop.rows]) as job:
        deadline = time.monotonic() + 600
        while (wrong := shop.differences()) and time.monotonic() < deadline and job._thread.is_alive():
            time.sleep(1)
        states = {name: s.error for name, s in job.states().items() if s.state != "running"}
    return wrong | ({"stopped": states} if states else {})


def kill_all(
    shop: RoughShop, engines: Sequence[str], each: int, seed: str, happened: Counter[str], out: Path | None = None
) -> None:
    """Kill the jobs of each engine so many times, at the same time. Raises what went wrong."""
    files = {engine: shop.add(engine, engine, clickhouse={"timeout": 5, "connect_timeout": 1}) for engine in engines}
    with ThreadPoolExecutor(len(files)) as pool:
        ran = [pool.submit(_kill, file, engine, each, seed, happened, out) for engine, file in files.items()]
    for one in ran:
        one.result()


def _kill(file: Path, engine: str, kills: int, seed: str, happened: Counter[str], out: Path | None) -> None:
    rng, failed = random.Random(f"{seed} {engine}"), file.with_suffix(".failed")
    job = JobProcess([file], f"{engine}-0", failed)
    for number in range(1, kills + 1):
        begins = job.await_batch(job.begun + rng.choice((1, 1, 2)), _LONGEST)
        assert begins, (engine, number, "begins no batch", failed.read_text() if failed.exists() else "")
        time.sleep(rng.random() * 0.15)
        happened["in mid-batch"] += job.working
        if rng.random() < 0.7:
            job.kill()
            happened["SIGKILL"] += 1
            job = JobProcess([file], f"{engine}-{number}", failed)
        else:
            job.freeze()
            happened["SIGSTOP"] += 1
            after = JobProcess([file], f"{engine}-{number}", failed)
            assert after.await_batch(rng.choice((1, 2)), _LONGEST), (engine, number, "does not take over")
            job.wake()
            happened["gave way by itself"] += job.end(rng.choice((0.2, 10.0)))
            job = after
        if out is not None:
            out.write_text(json.dumps(dict(happened)) + "\n")
    job.kill()
    assert not failed.exists(), failed.read_text()


@contextmanager
def struck(
    endpoint: EmbeddedClickHouse,
    every: float,
    seed: str,
    happened: Counter[str],
    note: Callable[[str], None] = lambda _: None,
) -> Iterator[None]:
    """The server is killed or frozen every so many seconds; ``note`` is called with each fault."""
    end, rng = threading.Event(), random.Random(f"server {seed}")

    def strike() -> None:
        while not end.wait(every * (0.5 + rng.random())):
            if rng.random() < 0.5:
                note("server killed")
                endpoint.kill()
                end.wait(rng.random() * 3)
                endpoint.start()
                happened["server killed"] += 1
            elif endpoint.pid is not None:
                note("server frozen")
                os.kill(endpoint.pid, signal.SIGSTOP)
                end.wait(rng.random() * 8)
                os.kill(endpoint.pid, signal.SIGCONT)
                happened["server frozen"] += 1

    thread = threading.Thread(target=strike, daemon=True)
    if every:
        thread.start()
    try:
        yield
    finally:
        end.set()
        if every:
            thread.join()


if __name__ == "__main__":
    main()
