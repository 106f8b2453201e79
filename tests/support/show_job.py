"""Shows a job of made-up streams as `ch_sink run` does: ``python -m tests.support.show_job SECONDS [json|quiet]``."""

import logging
import sys
import time

from ch_sink.cli.screen import LogOptions, shown
from ch_sink.observe.job_view import JobView
from ch_sink.observe.stream import Standing
from ch_sink.wiring.process import Stop, run_stoppable
from tests.support.views import view


def main(seconds: float, *words: str) -> None:
    looks: list[float] = []

    def look() -> JobView:
        now = time.monotonic()
        looks.append(now)
        began = looks[0]
        read = int((now - began) * 1000)
        streams = [view(f"s{n:02}", f"shop.table_{n:02}", lag=0, records=read, rows=read) for n in range(40)]
        broken = Standing("stopped", 1.0, "column 'colour' is unknown", "add it")
        streams.append(view("bad", "shop.broken", broken, lag=7))
        return JobView(tuple(streams), now, "starting Spark" if now - began < 0.3 else "")

    def work(stop: Stop) -> int:
        with shown(look, LogOptions(quiet="quiet" in words, form="json" if "json" in words else "text"), stop):
            time.sleep(seconds / 2)
            logging.getLogger("ch_sink").warning("the broker is away", extra={"stream": "s01"})
            logging.getLogger("some.library").warning("noise of a library")
            time.sleep(seconds / 2)
        sys.stdout.write("the end\n")
        return 0

    sys.exit(run_stoppable(work))


if __name__ == "__main__":
    main(float(sys.argv[1]), *sys.argv[2:])
