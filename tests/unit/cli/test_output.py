"""What Output prints, where, and in which form."""

import json
import signal

import pytest

from ch_sink.cli.output import Output
from ch_sink.errors import TableNotFound
from ch_sink.wiring.process import Stop, Stopped
from tests.support.terminal import Terminal


def test_a_table_shows_numbers_apart_and_nothing_as_a_dash(capsys):
    Output().table(("name", "rows"), [("a", 1234567), ("b", None)])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [["name", "rows"], ["a", "1", "234", "567"], ["b", "–"]]


def test_brackets_are_text_and_not_markup(capsys):
    Output().say("Array[red] [/] `x`")
    assert capsys.readouterr().out == "Array[red] [/] `x`\n"


def test_sql_is_printed_as_it_stands(capsys):
    sql = "CREATE TABLE t\n(\n    `" + "x" * 300 + "` Int64\n);"
    Output().sql(sql)
    assert capsys.readouterr().out == sql + "\n"


def test_json_leaves_out_everything_else_on_standard_output(capsys):
    out = Output(as_json=True)
    out.say("text")
    out.table(("a",), [(1,)])
    out.finding("fail", "title", "detail", "remedy")
    out.warn("careful")
    out.document({"a": [1, None]})
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"a": [1, None]}
    assert "careful" in shown.err


def test_an_error_is_told_with_its_next_step(capsys):
    Output().error(TableNotFound("table shop.orders does not exist", hint="Make it."))
    assert capsys.readouterr().err == "error: table shop.orders does not exist\nnext: Make it.\n"


def test_a_remedy_stands_below_its_finding_unless_all_is_well(capsys):
    out = Output()
    out.finding("ok", "key", "fine", "unneeded")
    out.finding("fail", "window", "too small", "ALTER TABLE a;\nALTER TABLE b;")
    assert capsys.readouterr().out.splitlines() == [
        "ok   key: fine",
        "fail window: too small",
        "        ALTER TABLE a;",
        "        ALTER TABLE b;",
    ]


def test_a_run_that_wrote_dead_letters_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    from ch_sink.cli.run import show_summaries
    from ch_sink.model.counts import Counts
    from ch_sink.observe.stream import StreamSummary

    bad, good = StreamSummary("s", "t", "shop.bad"), StreamSummary("s", "t", "shop.good")
    bad.counts.add(Counts(20, dead_letters=20))
    good.counts.add(Counts(20))
    show_summaries(Output(), [bad, good])
    warned = " ".join(capsys.readouterr().err.split())
    assert "shop.bad: 20 records of 20 became dead letters" in warned
    assert "shop.good" not in warned


def test_a_command_that_a_signal_ends_leaves_a_document_of_what_is_known(capsys):
    known, stop = {"streams": ["a"]}, Stop()

    def work():
        with Output(as_json=True).documenting(stop, lambda: known):
            known["streams"].append("b")
            stop.request(signal.SIGINT)
            stop.check()

    with pytest.raises(Stopped):
        work()
    assert json.loads(capsys.readouterr().out) == {"streams": ["a", "b"], "interrupted": True}


def test_a_forced_end_leaves_the_same_document_once(capsys, monkeypatch):
    ended = []
    monkeypatch.setattr("os._exit", ended.append)
    stop = Stop()
    with Output(as_json=True).documenting(stop, lambda: {"streams": []}):
        stop.request(signal.SIGINT)
        stop.force()
    assert json.loads(capsys.readouterr().out) == {"streams": [], "interrupted": True}
    assert ended == [130]


def test_progress_is_a_line_each_ten_seconds_where_nobody_watches(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    out = Output(as_json=True)
    for at in (101, 111, 112, 122):
        now[0] = at
        out.doing(f"at {at}")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "at 111\nat 122\n")


_STEPS = """
import os, tty
from ch_sink.cli.output import Output
from ch_sink.observe.logs import Step
tty.setcbreak(0)  # no echo
out = Output()
out.doing("opening")
out.doing(Step("reading the source: 3 of 4 parts", 0.75))
os.read(0, 1)
out.say("equal")
"""


def test_a_step_is_a_bar_on_a_terminal_which_the_result_replaces():
    terminal = Terminal(["-c", _STEPS], width=60)
    bar = "━" * 15 + "─" * 5 + "  75%  reading the source: 3 of 4 parts"
    terminal.until(lambda: bar in terminal.lines)
    assert "opening" not in terminal.text
    terminal.press(b" ")
    assert terminal.end() == 0
    assert [line for line in terminal.lines if line] == ["equal"]
