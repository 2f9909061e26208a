"""The statuses of pipelines: one truth, with age."""

from lapwing.client.pipeline_status import newest, problem, silent_for

NOW = 1_000.0


def status(state: str = "running", *, ago: float = 1.0, **more: object) -> dict[str, object]:
    return {"name": "lake", "state": state, "updated_ms": int((NOW - ago) * 1000), "lag": 0, **more}


def test_a_pipeline_that_reports_has_no_problem() -> None:
    assert problem(status(ago=14), now=NOW) == ""
    assert problem(status("stopped", ago=500), now=NOW) == ""
    assert problem(status("finished", ago=500), now=NOW) == ""


def test_a_pipeline_that_should_report_and_does_not_is_a_problem() -> None:
    assert silent_for(status(ago=75), now=NOW) == 75
    assert problem(status(ago=75), now=NOW).startswith("no report for 1m 15s: its process has ended")
    assert problem(status("silent", ago=75), now=NOW).startswith("no report for 1m 15s")


def test_a_failure_is_its_first_line() -> None:
    long_ago = status("failed", ago=500, error="checkpoint is gone\n at x")

    assert problem(long_ago, now=NOW) == "failed: checkpoint is gone"
    assert problem(status("failed"), now=NOW) == "failed: it gave no reason"


def test_brokers_that_a_pipeline_waits_for_are_named() -> None:
    waiting = status(away=["h:1: connection refused"])

    assert problem(waiting, now=NOW) == "waits for brokers that are away: h:1: connection refused"


def test_of_several_nodes_the_last_report_counts() -> None:
    old, new = status("running", ago=100), status("failed", ago=2)
    other = {**status(), "name": "clicks"}

    assert newest([new, old, other]) == (other, new)
