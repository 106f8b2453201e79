"""``ch_sink pause`` and ``ch_sink resume``: states of streams, changed from any host while a job runs."""

import getpass
import socket
import time
from pathlib import Path
from typing import Literal

from ch_sink.cli.options import AsJson, ConfigFiles, Only, Overrides, expecting_a_ledger, load_all
from ch_sink.cli.output import Output


def pause(configs: ConfigFiles, only: Only = None, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Pause streams: the running batch ends, and no other begins, not even after a restart.

    Works from any host, whether or not a job runs. `ch_sink resume` ends the pause.
    """
    _ask("pause", configs, only, overrides, Output(as_json=as_json))


def resume(configs: ConfigFiles, only: Only = None, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Resume streams that are paused or stopped, and let waiting ones try again at once.

    Works from any host. If no job runs, the streams continue when the next one starts.
    """
    _ask("resume", configs, only, overrides, Output(as_json=as_json))


def _ask(
    wanted: Literal["pause", "resume"],
    files: list[Path],
    only: str | None,
    overrides: list[str] | None,
    out: Output,
) -> None:
    from ch_sink.discovery.wiring import states_by_ledger
    from ch_sink.ports import Request
    from ch_sink.stream.standing import seen_from_outside

    configs = load_all(out, files, overrides, only, recorded=True)
    request = Request(wanted, f"{getpass.getuser()}@{socket.gethostname()}", time.time())
    done: list[dict[str, str]] = []
    for states, streams in states_by_ledger(configs):
        before = states.read([c.stream_name for c in streams])
        with expecting_a_ledger(streams[0]):
            states.ask({c.stream_name: request for c in streams})
        done += [
            {
                "stream": c.stream_name,
                "topic": c.kafka.topic,
                "requested": wanted,
                "before": seen_from_outside(before[c.stream_name]).state,
            }
            for c in streams
        ]
    for entry in done:
        out.say(f"{entry['stream']}: {wanted} requested, was {entry['before']}")
    out.document({"streams": done})
