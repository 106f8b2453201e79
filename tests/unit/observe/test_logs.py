"""What goes into a job's log."""

import io
import json
import logging

import pytest

from ch_sink.observe.logs import formatter, logging_to


@pytest.fixture
def text() -> io.StringIO:
    return io.StringIO()


def handler(text: io.StringIO) -> logging.Handler:
    found = logging.StreamHandler(text)
    found.setFormatter(formatter("json"))
    return found


def test_no_library_s_lines_unless_they_are_asked_for(text: io.StringIO) -> None:
    with logging_to([handler(text)], level=logging.DEBUG):
        logging.getLogger("a.library").warning("a library")
        logging.getLogger("ch_sink").debug("mine")
    with logging_to([handler(text)], level=logging.DEBUG, libraries=True):
        logging.getLogger("a.library").debug("asked for")
    assert [json.loads(line)["message"] for line in text.getvalue().splitlines()] == ["mine", "asked for"]


def test_commands_to_the_jvm_are_never_logged_since_they_carry_the_configuration(text: io.StringIO) -> None:
    with logging_to([handler(text)], level=logging.DEBUG, libraries=True):
        logging.getLogger("py4j.clientserver").debug("Command to send: cGE1NXdvcmQ=")
        logging.getLogger("py4j.java_gateway").debug("Command to send: cGE1NXdvcmQ=")
        logging.getLogger("py4j.clientserver").info("connection lost")
    assert [json.loads(line)["message"] for line in text.getvalue().splitlines()] == ["connection lost"]


def test_levels_and_handlers_are_as_before_afterwards(text: io.StringIO) -> None:
    loggers = [logging.getLogger(name) for name in ("", "ch_sink", "py4j", "ch_sink.kafka.client")]
    before = [(one.level, list(one.handlers)) for one in loggers]
    with logging_to([handler(text)], level=logging.DEBUG, libraries=True):
        pass
    assert [(one.level, list(one.handlers)) for one in loggers] == before
