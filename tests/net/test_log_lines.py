"""Log lines, into a pipe."""

import os
import re

import pytest

from lapwing.net.logs import Level, Log, parse_level


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    yield reading, writing
    os.close(reading)
    os.close(writing)


def test_the_form_of_a_line(pipe):
    Log("[nsqd] ", Level.INFO, pipe[1]).info("TCP: listening on 127.0.0.1:4150")

    line = os.read(pipe[0], 1000).decode()
    assert re.fullmatch(
        r"\[nsqd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} INFO: TCP: listening on 127\.0\.0\.1:4150\n", line
    )


def test_levels_below_the_chosen_one_are_silent_and_it_can_be_changed(pipe):
    log = Log("", Level.WARN, pipe[1])
    log.debug("1")
    log.info("2")
    log.warn("3")
    log.level = Level.DEBUG
    log.debug("4")
    log.error("5")
    log.fatal("6")

    lines = os.read(pipe[0], 1000).decode().splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == ["WARNING: 3", "DEBUG: 4", "ERROR: 5", "FATAL: 6"]


def test_one_event_is_one_line_whatever_a_peer_put_into_it(pipe):
    Log("", Level.INFO, pipe[1]).info("a\nb\rc" + "x" * 10000)

    line = os.read(pipe[0], 10000)
    assert line.count(b"\n") == 1
    assert b"a\\nb\\rcx" in line
    assert len(line) <= 4001


def test_a_terminal_is_told_nothing_by_a_peer(pipe):
    Log("", Level.INFO, pipe[1]).info("\x1b[31mred\x07 \u2028\x9b \udcff 1µs")

    assert os.read(pipe[0], 10000).decode().endswith("INFO: \\x1b[31mred\\x07 \\u2028\\x9b \\udcff 1µs\n")


def test_a_reader_that_stops_costs_lines_and_no_time(pipe):
    log = Log("", Level.INFO, pipe[1])
    for number in range(5000):
        log.info(f"line {number} " + "x" * 100)

    text = os.read(pipe[0], 1 << 20)
    while b"again" not in text:
        log.info("again")
        text += os.read(pipe[0], 1 << 20)
    assert b"line 0 " in text
    assert re.search(rb"WARNING: \d+ log lines were dropped: stderr was not read\n", text)


def test_a_stderr_that_is_gone_is_no_reason_to_die(pipe):
    reading, writing = os.pipe()
    log = Log("", Level.INFO, writing)
    os.close(reading)
    log.info("nobody hears this")
    os.close(writing)
    log.info("nor this")


def test_words_of_levels():
    assert parse_level("WARN") is Level.WARN
    with pytest.raises(ValueError):
        parse_level("warning")
