"""What a running job shows: on a terminal, in a pipe, without colour, after the window's size changed."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from ch_sink.cli.screen import rendered
from ch_sink.observe.job_view import Album, JobView
from ch_sink.observe.stream import Standing
from tests.support.terminal import Terminal
from tests.support.views import view

ROOT = Path(__file__).resolve().parents[3]
SHOW = ("-m", "tests.support.show_job")
_COLOUR = re.compile(r"\x1b\[[\d;]*3\d(?:;\d+)*m")


def whole(terminal: Terminal) -> bool:
    """Whether the screen is not being redrawn just now."""
    heads = [line for line in terminal.lines if "records/s" in line and line.startswith("table")]
    return len(heads) == 1 and terminal.lines[-1].startswith("… and")


@pytest.mark.slow
def test_a_terminal_shows_one_table_that_redraws() -> None:
    terminal = Terminal([*SHOW, "3"])
    terminal.until(lambda: "starting Spark" in terminal.text)
    terminal.until(lambda: "live" in terminal.text)
    terminal.until(lambda: "the broker is away" in terminal.text)
    terminal.until(lambda: whole(terminal))
    shown = [line for line in terminal.lines if line.strip()]
    [place] = [n for n, line in enumerate(shown) if line.startswith("table")]
    assert shown[place + 1].split()[:3] == ["shop.broken", "stopped", "7"], terminal.text
    assert "column 'colour' is unknown" in shown[place + 1]
    assert "starting Spark" not in terminal.text
    assert sum("shop.table_00" in line for line in shown) == 1
    [said] = [n for n, line in enumerate(shown) if "the broker is away" in line]
    assert said < place, "log lines are above the table"
    assert shown[-1] == "… and 25 streams in a better state"
    assert _COLOUR.search(terminal.raw)
    assert terminal.end() == 0
    assert [line for line in terminal.lines if line.strip()] == [shown[said], "the end"], "the table goes at the end"
    assert "noise" not in terminal.raw


@pytest.mark.long
@pytest.mark.slow
def test_a_window_that_gets_smaller_is_not_written_beyond_and_one_that_grows_is_used() -> None:
    terminal = Terminal([*SHOW, "8"], width=140, height=40)
    terminal.until(lambda: whole(terminal))
    assert max(map(len, terminal.lines)) > 100
    before = len(terminal.raw)
    terminal.resize(70, 16)
    terminal.until(lambda: "and 33 streams" in terminal.raw[before:])
    [start] = [m.start() for m in re.finditer("and 33 streams", terminal.raw)][:1]
    again = terminal.raw[start:]
    terminal.until(lambda: terminal.raw[start:].count("and 33 streams") >= 3)
    again = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", terminal.raw[start:])
    assert max(len(line) for line in re.split(r"[\r\n]+", again)) <= 70
    terminal.resize(120, 36)
    terminal.until(lambda: "… and 13 streams in a better state" in terminal.lines)
    assert max(map(len, terminal.lines)) > 100
    assert terminal.end() == 0


@pytest.mark.slow
def test_ctrl_c_is_told_below_the_table_and_a_second_one_leaves_the_terminal_in_order() -> None:
    terminal = Terminal([*SHOW, "20"])
    terminal.until(lambda: whole(terminal))
    terminal.press(b"\x03")
    told = "Stopping after the running batch. Press Ctrl-C again to end at once."
    terminal.until(lambda: terminal.lines[-1] == told)
    before = len(terminal.raw)
    terminal.until(lambda: terminal.raw[before:].count(told) >= 2)
    assert sum(line.startswith("table") for line in terminal.lines) == 1, terminal.text
    terminal.press(b"\x03")
    assert terminal.end() == 130
    assert terminal.raw.rfind("\x1b[?25h") > terminal.raw.rfind("\x1b[?25l"), "the cursor is visible again"
    assert "Traceback" not in terminal.text


@pytest.mark.long
@pytest.mark.slow
def test_without_colour_it_redraws_just_the_same() -> None:
    terminal = Terminal([*SHOW, "2"], environ={"NO_COLOR": "1"})
    terminal.until(lambda: whole(terminal))
    assert terminal.end() == 0
    assert not _COLOUR.search(terminal.raw)
    assert "\x1b[1A" in terminal.raw


@pytest.mark.long
@pytest.mark.slow
def test_a_terminal_that_can_do_nothing_gets_lines() -> None:
    terminal = Terminal([*SHOW, "2"], environ={"TERM": "dumb"})
    assert terminal.end() == 0
    assert "\x1b" not in terminal.raw
    assert "INFO    starting Spark" in terminal.text


def in_a_pipe(*words: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, *SHOW, "3", *words], capture_output=True, text=True, check=True, cwd=ROOT, timeout=60
    )
    assert done.stdout == "the end\n"
    return done.stderr.splitlines()


@pytest.mark.long
@pytest.mark.slow
def test_a_pipe_gets_lines_and_no_library_s() -> None:
    moment = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    lines = [re.fullmatch(f"{moment} (\\w+) +(.*)", line).groups() for line in in_a_pipe()]  # type: ignore[union-attr]
    assert lines[0] == ("INFO", "starting Spark")
    assert lines[1][1].startswith("live; 41 streams: 40 running, 1 stopped, lag 7, ")
    assert lines[2:] == [("WARNING", "the broker is away")]
    [only] = in_a_pipe("quiet")
    assert only.endswith("WARNING the broker is away")


@pytest.mark.long
@pytest.mark.slow
def test_lines_of_json_name_time_level_and_stream() -> None:
    last = json.loads(in_a_pipe("json")[-1])
    assert {k: last[k] for k in ("level", "stream", "message")} == {
        "level": "warning",
        "stream": "s01",
        "message": "the broker is away",
    }
    assert last["time"].startswith("20")


def picture(time: float, **streams: tuple[int, int | None]) -> JobView:
    """Stream → records and lag."""
    made = [view(name, f"d.{name}", records=records, rows=records, lag=lag) for name, (records, lag) in streams.items()]
    return JobView(tuple(made), time)


def test_rates_are_those_of_the_last_interval() -> None:
    album = Album()
    album.add(picture(0.0, a=(0, 0), b=(0, 0)))
    album.add(picture(10.0, a=(1000, 0), b=(0, 0)))
    shown = album.add(picture(12.0, a=(1100, 0), b=(10, 0)))
    assert {s.stream: s.rate for s in shown.streams} == {"a": 50.0, "b": 5.0}
    assert shown.rate == 55.0


def test_a_backlog_has_a_share_and_an_estimate_until_it_is_read() -> None:
    album = Album()
    assert album.add(picture(0.0, a=(0, 10_000))).phase == "catching up: 0%"
    assert album.add(picture(10.0, a=(2_000, 8_000))).phase == "catching up: 20%, about 40 s left"
    assert album.add(picture(40.0, a=(9_900, 100))).phase == "live"
    assert album.add(picture(41.0, a=(10_100, 0))).phase == "live"


def test_a_job_that_was_live_is_behind_only_after_some_seconds() -> None:
    album = Album()
    phases = [
        album.add(picture(at, a=(int(at), lag))).phase for at, lag in ((0.0, 0), (1.0, 900), (2.0, 0), (3.0, 900))
    ]
    assert phases == ["live"] * 4
    assert album.add(picture(8.0, a=(8, 900))).phase.startswith("catching up: ")


def test_the_backlog_of_a_paused_stream_is_not_being_caught_up() -> None:
    album, paused = Album(), view("x", "d.x", Standing("paused"), lag=5_000_000)
    album.add(JobView((*picture(0.0, a=(0, 0)).streams, paused), 0.0))
    shown = album.add(JobView((*picture(20.0, a=(100, 0)).streams, paused), 20.0))
    assert (shown.phase, shown.lag) == ("live", 5_000_000)


def test_a_job_is_not_live_before_its_streams_are_open() -> None:
    opening = view("y", "d.y", Standing("opening"))
    album = Album()
    assert album.add(JobView((opening, opening), 0.0)).phase == "opening streams: 0 of 2 open"
    half = JobView((*picture(1.0, a=(0, 50)).streams, opening), 1.0)
    assert album.add(half).phase == "opening streams: 1 of 2 open"
    assert album.add(picture(2.0, a=(0, 50), y=(0, 50))).phase == "catching up: 0%"


def test_a_standstill_has_no_estimate() -> None:
    album = Album()
    album.add(picture(0.0, a=(0, 500)))
    assert album.add(picture(60.0, a=(0, 500))).phase == "catching up: 0%"


def test_the_line_of_a_minute_has_states_lag_rate_and_dead_letters() -> None:
    album = Album()
    stopped = view("x", "d.x", Standing("stopped"), lag=5, dead_letters=2)
    opening = view("y", "d.y", Standing("opening"))
    first = picture(0.0, a=(0, 0))
    second = JobView((*picture(10.0, a=(100_000, 0)).streams, stopped, opening), 10.0)
    album.add(first)
    assert album.add(second).line() == (
        "opening streams: 2 of 3 open; 3 streams: 1 stopped, 1 running, 1 opening, lag 5, 10 000 records/s, "
        "100 000 rows, 2 dead letters"
    )


def test_the_bar_of_a_backlog_has_a_line_of_its_own() -> None:
    album = Album()
    album.add(picture(0.0, a=(0, 10_000)))
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(rendered(album.add(picture(10.0, a=(2_000, 8_000))), 24))
    head, bar, columns, row = console.export_text().strip().splitlines()
    assert head.startswith("catching up: 20%")
    assert set(bar.strip()) <= {"━", "╸", "╺"}
    assert columns.split()[:4] == ["table", "state", "lag", "records/s"]
    assert columns.split()[-2:] == ["last", "error"]
    assert row.startswith("d.a ")


def test_nothing_in_a_name_or_an_error_is_markup() -> None:
    bad = view("x", "d.[red]x", Standing("stopped", 1.0, "[bold]column[/] is unknown\nsecond line"))
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(rendered(JobView((bad,), 0.0), 24))
    text = console.export_text()
    assert "d.[red]x" in text
    assert "[bold]column[/] is unknown" in text
    assert "second line" not in text
