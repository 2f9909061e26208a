"""docs/tutorials/from-celery.md and examples/celery_tasks.py do what they promise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from daemons import nsqd, until
from documents import ROOT, block
from lapwing import SyncAdmin


@pytest.mark.slow
@pytest.mark.parametrize("where", ["page", "example"])
def test_a_worker_with_a_delayed_task_and_a_dead_letter(where: str, tmp_path: Path) -> None:
    with nsqd() as daemon, SyncAdmin(daemon.http) as admin:
        if where == "page":
            name, text = "tasks", block("docs/tutorials/from-celery.md", "# tasks.py").text
            text = text.replace("127.0.0.1:4150", daemon.tcp).replace('"1s"}', f'"1s", "nsqd_http": "{daemon.http}"}}')
            use = block("docs/tutorials/from-celery.md", "from tasks import charge, greet")
            (tmp_path / "use.py").write_text(use.text)
        else:
            name, text = "celery_tasks", (ROOT / "examples" / "celery_tasks.py").read_text()
        (tmp_path / f"{name}.py").write_text(text)
        known = {**os.environ, "LAPWING_NSQD_TCP": daemon.tcp, "LAPWING_NSQD_HTTP": daemon.http}
        command = [sys.executable, "-m", "celery", "-A", name, "worker", "-P", "solo"]
        with (tmp_path / "log").open("wb") as log:
            worker = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log, env=known)
        try:
            program = [sys.executable, "use.py" if where == "page" else "celery_tasks.py"]
            printed = subprocess.check_output(program, cwd=tmp_path, env=known, text=True, timeout=200)
            until(lambda: "celery.celery.dead" in admin.stats().topics, seconds=100, what="the dead letter")
            (letter,) = admin.dead_letters("celery.celery.dead").answers[daemon.http].letters
        finally:
            worker.terminate()
            worker.wait(100)

    assert printed.strip() == ("hello ann" if where == "page" else "order 8 waits for its payment")
    assert letter.reason == "rejected"
