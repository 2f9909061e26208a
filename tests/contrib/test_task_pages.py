"""The programs of taskiq.md, dramatiq.md and django.md in docs/how-to do what their pages promise."""

import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import django
import pytest
from scene import PATIENCE, Scene, until

import daemons
from documents import blocks

BESIDE_PYTHON = Path(sys.executable).parent


@pytest.fixture(scope="module")
def nsqd() -> Iterator[daemons.Daemon]:
    with daemons.nsqd() as daemon:
        yield daemon


RESULTS = """
from jobs import bill
from lapwing.contrib.django.models import TaskRow

results = [bill.get_result(row.id) for row in TaskRow.objects.all()]
print("results", *sorted(f"{result.status.value}:{result.attempts}" for result in results))
print("values", *(result.return_value for result in results if result.status.value == "SUCCESSFUL"))
"""


class Page(Scene):
    """The programs of a page in a folder, with the addresses of the test, and what they print."""

    def __init__(self, page: str, nsqd: daemons.Daemon, folder: Path, queue: str) -> None:
        super().__init__(nsqd, folder, queue)
        self.folder = folder
        # so that each line is written at once and whole, by several processes into one file
        (folder / "sitecustomize.py").write_text("import sys\nsys.stdout.reconfigure(line_buffering=True)\n")
        self.environment["PYTHONPATH"] += f"{os.pathsep}{folder}"
        for each in blocks(page):
            if each.language == "python":
                (folder / each.first.removeprefix("# ")).write_text(self.addressed(each.text))
        installed, *rest = [each.text.splitlines() for each in blocks(page) if each.language == "sh"]
        assert installed[0].startswith("pip install")
        self.commands = [line for lines in rest for line in lines]

    def addressed(self, text: str) -> str:
        """A program with the addresses of this test."""
        text = text.replace('"127.0.0.1:4150")', f'"{self.nsqd.tcp}", nsqd_http="{self.nsqd.http}")')
        text = text.replace('"nsqd": "127.0.0.1:4150"', f'"nsqd": "{self.nsqd.tcp}", "nsqd_http": "{self.nsqd.http}"')
        return text.replace("127.0.0.1:4151", self.nsqd.http)

    def begin(self, line: str) -> subprocess.Popen[bytes]:
        """Start a command of the page."""
        program, *words = shlex.split(line)
        command = [str(BESIDE_PYTHON / program), *words]
        with self.notes.open("ab") as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.workers.append(process)
        return process

    def finish(self, line: str) -> None:
        """Run a command of the page that ends."""
        assert self.begin(line).wait(PATIENCE) == 0

    def printed(self) -> list[str]:
        """What the programs have printed; what two threads print at once may be in one line."""
        return re.findall(r"billed \d+|(?:results|values) .*", self.notes.read_text())

    def redrive(self) -> None:
        """Return the dead letters of the queue."""
        url = f"{self.nsqd.url}/dead/redrive?topic={self.queue}.workers.dead"
        urllib.request.urlopen(url, data=b"{}", timeout=PATIENCE).read()

    def end(self) -> None:
        """Kill what still runs."""
        for process in self.workers:
            if process.poll() is None:
                self.kill(process)
        print(self.notes.read_text())  # for who reads of a failure


@pytest.fixture
def page(nsqd: daemons.Daemon, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Page]:
    name, queue = request.param
    made = Page(name, nsqd, tmp_path, queue)
    yield made
    made.end()


@pytest.mark.parametrize("page", [("docs/how-to/taskiq.md", "taskiq")], indirect=True)
def test_the_programs_for_taskiq(page: Page) -> None:
    publish, work = page.commands
    page.finish(publish)
    page.begin(work)

    until(lambda: {"billed 1", "billed 2", "billed 3", "billed 13"} <= set(page.printed()))
    until(lambda: page.letters(page.queue))
    assert [error.partition(" (")[0] for error in page.letters(page.queue)] == ["failed: ValueError: no such order"]
    page.redrive()
    until(lambda: page.printed().count("billed 13") == 2)
    page.finish("python report.py")
    until(lambda: "billed 4" in page.printed())
    assert sorted(each.get("cron", "") for each in page.get("/schedules")["schedules"]) == ["", "0 8 * * MON-FRI"]


@pytest.mark.parametrize("page", [("docs/how-to/dramatiq.md", "default")], indirect=True)
def test_the_programs_for_dramatiq(page: Page) -> None:
    publish, work = page.commands
    page.finish(publish)
    page.begin(work)

    until(lambda: {"billed 1", "billed 2", "billed 13"} <= set(page.printed()))
    until(lambda: page.letters(page.queue))
    assert [error.partition(" (")[0] for error in page.letters(page.queue)] == ["failed: ValueError: no such order"]
    assert page.printed().count("billed 13") == 3
    page.redrive()
    until(lambda: page.printed().count("billed 13") == 4)


@pytest.mark.parametrize("page", [("docs/how-to/django.md", "tasks.default")], indirect=True)
def test_the_programs_for_django(page: Page) -> None:
    settings, jobs = page.folder / "settings.py", page.folder / "jobs.py"
    parts = settings.read_text().replace("...", "*INSTALLED_APPS").replace("10s", "10ms")
    page.finish("django-admin startproject shop .")
    with (page.folder / "shop" / "settings.py").open("a") as project:
        project.write(parts)
    settings.unlink()
    if django.VERSION < (6,):
        jobs.write_text(jobs.read_text().replace("from django.tasks import", "from django_tasks import"))
    migrate, work = page.commands
    page.finish(migrate)
    page.begin(work)
    page.finish("python manage.py shell -c 'import jobs; jobs.order_placed(1)'")
    page.finish("python manage.py shell -c 'import jobs; jobs.bill.enqueue(None)'")

    until(lambda: page.letters(page.queue))
    assert page.letters(page.queue)[0].startswith("failed: TypeError: ")
    (page.folder / "results.py").write_text(RESULTS)

    def results() -> list[str]:
        page.finish("python manage.py shell -c 'import results'")
        return page.printed()

    until(lambda: "results FAILED:3 SUCCESSFUL:1 SUCCESSFUL:1" in results())
    assert "values 2 2" in page.printed()
