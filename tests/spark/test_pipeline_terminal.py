"""What `lapwing pipeline run` shows on a terminal: a line that moves, a bar for bounded runs, and Ctrl-C."""

import os
import sys

import pytest
from terminal import Terminal

LAPWING = [sys.executable, "-m", "lapwing.cli.main", "pipeline"]
BOUNDED = """
from dataclasses import replace
from lapwing.cli.pipeline import _display
from lapwing.spark.pipelines.run.progress import PipelineProgress

progress = PipelineProgress("archive", "archive", ("orders",), "archive", state="running", batch_id=3, batch_ms=40)
with _display(bounded=%s) as show:
    for done in range(0, 1001, 100):
        show(replace(progress, rows_in=done, rows_out=done, lag=1000 - done, input_rate=1234.5))
    show(replace(progress, state="finished", rows_in=1000, rows_out=1000, lag=0, worked_ms=500))
"""


def environment():
    return {**os.environ}


def shown_by(script, tmp_path):
    terminal = Terminal([sys.executable, "-c", script], cwd=tmp_path, env=environment())
    try:
        assert terminal.end(240) == 0, terminal.text
    finally:
        terminal.close()
    return terminal


def lines_left(terminal):
    """What stands on the screen at the end: each line as it was written last."""
    written = terminal.text.replace("\r\n", "\n").split("\n")
    return [line.rsplit("\r", 1)[-1].strip() for line in written if line.strip()]


def test_a_bounded_run_has_a_bar_that_fills_in_one_line(tmp_path):
    terminal = shown_by(BOUNDED % True, tmp_path)

    assert "in 300, out 300" in terminal.text
    assert "1,234 msg/s in" in terminal.text
    [last] = lines_left(terminal)
    assert "archive: finished" in last
    assert "━" * 20 in last
    assert "2,000 msg/s on average" in last
    assert "lag 0" in last


def test_an_unbounded_run_has_a_line_without_a_bar(tmp_path):
    terminal = shown_by(BOUNDED % False, tmp_path)

    [last] = lines_left(terminal)
    assert "archive: finished | batch 3 in 40 ms | in 1,000, out 1,000" in last
    assert "━" not in terminal.text


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(720)
def test_ctrl_c_on_a_terminal_stops_after_the_batch_and_says_so(broker, tmp_path):
    broker.publish("orders", *(b"%d" % n for n in range(100)))
    run = ["run", "archive", "--nsqd", broker.address, "--set", "trigger=300ms", "--master", "local[2]"]
    run += ["--conf", "spark.log.level=WARN"]  # so that Spark has something to log, which the line is not to be lost in
    terminal = Terminal([*LAPWING, *run], cwd=tmp_path, env=environment())
    try:
        terminal.read_until(r"starting Spark \(10 s as a rule", 240)
        terminal.read_until(r"archive: running \| batch \d+ in \d+ ms \| in 100, out 100 .* lag 0", 240)
        terminal.press(b"\x03")
        terminal.read_until("stopping after the current batch; once more stops at once", 120)
        assert terminal.end(240) == 0, terminal.text
    finally:
        terminal.close()

    assert "archive: stopped" in lines_left(terminal)[-1]
    assert "WARN" not in terminal.text
    assert "WARN" in (tmp_path / "lapwing-data/pipelines/archive/spark.log").read_text()
