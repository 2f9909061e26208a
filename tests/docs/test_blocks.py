"""Every code block of README.md and docs/ runs in a test, or has a reason below why it does not."""

import ast
import asyncio
import contextlib
import inspect
import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

import pytest
import yaml

from daemons import BESIDE_PYTHON, Daemon, nsqd, start_nsqlookupd, until
from documents import ROOT, Block, block, blocks, joined, pages
from lapwing import App, Requeue
from lapwing.cli import main
from lapwing.cli.commands import ArgumentMissing, Command, Group
from lapwing.spark.pipelines.settings.kind_settings import KINDS
from lapwing.testing import Broker, Outcome

# name of the page, first line (or a language: all such blocks of the page): the test that runs it
ELSEWHERE = {
    ("README.md", "import asyncio"): "tests/first_minutes/test_seven_steps.py",
    ("README.md", "lapwing topic create orders --channel billing"): "tests/first_minutes/test_seven_steps.py",
    ("README.md", "from lapwing.spark.session import local_session"): "tests/spark/test_documents.py",
    ("spark.md", "python"): "tests/spark/test_documents.py",
    ("spark.md", "sql"): "tests/spark/test_dead_letters.py",
    ("pipelines.md", "from deltalake import DeltaTable"): "tests/spark/test_pipeline_archive.py",
    ("pipelines.md", "# once.py"): "tests/spark/test_pipeline_topics.py",
    ("security.md", "json"): "tests/nsqd/test_auth.py",
    ("metrics.md", "mappings:"): "tests/packaging/test_monitoring_formats.py",
    ("first-worker.md", "python"): "tests/docs/test_tutorial.py",
    ("first-worker.md", "sh"): "tests/docs/test_tutorial.py",
    ("headers.md", "python"): "tests/client/test_requests.py",
    ("from-celery.md", "python"): "tests/contrib/test_celery_page.py",
    ("from-celery.md", "celery -A tasks worker"): "tests/contrib/test_celery_page.py",
    ("from-celery.md", "lapwing dead show celery.celery.dead"): "tests/docs/test_tutorial.py",
    ("django.md", "python"): "tests/contrib/test_task_pages.py",
    ("django.md", "python manage.py migrate"): "tests/contrib/test_task_pages.py",
    ("taskiq.md", "python"): "tests/contrib/test_task_pages.py",
    ("taskiq.md", "python tasks.py"): "tests/contrib/test_task_pages.py",
    ("dramatiq.md", "python"): "tests/contrib/test_task_pages.py",
    ("dramatiq.md", "python tasks.py"): "tests/contrib/test_task_pages.py",
    ("failure.md", "lapwing dead list"): "tests/cli/test_lapwing_dead.py",
    (
        "failure.md",
        "lapwing pending list orders/billing --min-idle 1m",
    ): "tests/cli/test_lapwing_dead.py",
    ("protocol.md", "json"): "tests/nsqd/test_log_api.py",
    **{
        (f"{page}.md", language): "tests/docs/test_followed_pages.py"
        for page, languages in {
            "from-nsq": "sh",
            "from-redis": "sh python",
            "spark-table": "sh python yaml",
            "fastapi": "sh python",
            "monitoring": "sh",
            "order": "sh python",
            "outbox": "sh python",
            "replay": "sh",
            "retries": "sh python",
            "several-nodes": "sh python",
        }.items()
        for language in languages.split()
    },
}
# page, first line: why nobody runs it
NOT_RUN = {
    ("README.md", "make run"): "sets up 1 GB; tests/cli/test_lapwing_up.py runs what it starts",
    ("from-nsq.md", "systemctl stop nsqd"): "stops a system's service; tests/cli/test_import_nsqd.py imports",
    ("releases.md", "pip install lapwing"): "installs packages",
    ("releases.md", "make test"): "is what runs this test; make dist tries both archives itself",
    ("operations.md", "mkdir -p /var/lib/nsqd"): "writes outside of the test; its flags are those of every test",
    ("kubernetes.md", "docker build -f packaging/docker/Dockerfile -t registry.example/lapwing:0.1.0 ."):
        "needs a cluster; tests/packaging builds the wheel of the image and renders the chart",
    ("operations.md", "pip install 'lapwing[replicated]'"):
        "writes to S3; tests/cli/test_lapwing_remote.py does it on loopback",
    ("replicated.md", "sh"): "needs S3; tests/crash/test_taken_over.py does it with a folder",
    ("replicated.md", "ini"): "for systemd, which is not here",
    ("replicated.md", "apiVersion: apps/v1"): "needs a cluster; test_data_is_well_formed reads it",
    ("redis.md", "lapwing import-redis redis.example:6379 orders 'events:*' --to 127.0.0.1:6379"):
        "another machine; tests/cli/test_import_redis.py copies",
    ("spark.md", "pip install 'lapwing[spark]'"): "installs packages",
    ("from-celery.md", "pip install 'lapwing[celery,admin]'"): "installs packages",
    ("django.md", "pip install 'lapwing[django,admin]'"): "installs packages",
    ("taskiq.md", "pip install 'lapwing[taskiq,admin]'"): "installs packages",
    ("dramatiq.md", "pip install 'lapwing[dramatiq,admin]'"): "installs packages",
    ("airflow.md", "sh"): "installs packages",
    ("airflow.md", "python"): "needs Airflow; tests/contrib/test_airflow.py runs the trigger",
    ("pipelines.md", "pip install 'lapwing[spark]'"): "installs packages; tests/spark runs the pipelines",
    ("pipelines.md", "# transformations/orders.py"):
        "tests/soak/spark_submit.py runs it, with pyspark[pipelines]",
    ("testing.md", "sh"): "runs until it is ended; tests/daemons.py starts nsqd like this",
    ("monitoring.md", "scrape_configs:"): "for Prometheus, which is not here; test_data_is_well_formed reads it",
    ("reliability.md", "make soak SOAK=10m"): "takes ten minutes; tests/faults has its short forms",
    ("reliability.md", "make fuzz"): "takes an hour; tests/fuzz has its short forms",
}  # fmt: skip
HERE = {
    ("README.md", "nsqlookupd &"), ("client.md", "python"), ("redis.md", "python"), ("failure.md", "sh"),
    ("schedules.md", "sh"), ("schedules.md", "python"), ("keys.md", "sh"),
    ("testing.md", "python"), ("headers.md", "sh"),
    ("failure.md", "python"), ("failure.md", "json"), ("security.md", "sh"),
    ("pipelines.md", "yaml"), ("pipelines.md", "from lapwing.spark.pipelines.python import pipeline"),
    ("redis.md", "nsqd --data-path=data --redis-address=127.0.0.1:6379"),
}  # fmt: skip
ROOT_PAGES = ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
SHORTENED = r"[A-Z]{3,}|\.\.\.|…|\||<"  # stands for several commands, or for words of the reader
ALL = [each for page in pages() for each in blocks(page)]


def keys(each: Block) -> set[tuple[str, str]]:
    page = Path(each.page).name.replace(".zh-CN", "")
    return {(page, each.first), (page, each.language)}


@pytest.mark.parametrize("each", ALL, ids=str)
def test_a_block_runs_in_a_test_or_has_a_reason_why_not(each: Block) -> None:
    assert keys(each) & (ELSEWHERE.keys() | NOT_RUN.keys() | HERE), f"run it, or give a reason: {each}"


def test_the_lists_name_blocks_and_tests_that_exist() -> None:
    known = {key for each in ALL for key in keys(each)}

    assert not (ELSEWHERE.keys() | NOT_RUN.keys() | HERE) - known
    assert [path for path in ELSEWHERE.values() if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("each", [each for each in ALL if each.language in ("yaml", "json")], ids=str)
def test_data_is_well_formed(each: Block) -> None:
    if each.language == "json":
        assert json.loads(re.sub(r"\.\.\.", "", each.text))
    else:
        assert yaml.safe_load(each.text)


@pytest.mark.parametrize(
    "each", [each for each in blocks("docs/reference/pipelines.md") if "kind: " in each.text], ids=str
)
def test_a_pipeline_file_has_settings_that_its_kind_knows(each: Block) -> None:
    document = yaml.safe_load(each.text)
    known = set(KINDS[document.pop("kind")].__dataclass_fields__)

    assert document.keys() <= known


@pytest.mark.parametrize("page", [page for page in pages() if "zh" in page])
def test_a_chinese_page_has_the_blocks_of_the_english_one(page: str) -> None:
    def code(page: str) -> list[str]:
        return [re.sub(r"\s+#.*", "", each.text) for each in blocks(page)]

    assert code(page) == code(page.replace(".zh-CN", "").replace("docs/zh/", "docs/"))


@pytest.mark.parametrize("page", [*pages(), *ROOT_PAGES])
def test_no_line_is_longer_than_a_hundred_characters(page: str) -> None:
    lines = (ROOT / page).read_text().splitlines()

    assert [f"{page}:{number}" for number, line in enumerate(lines, 1) if len(line) > 100 and line[:1] != "|"] == []


@pytest.mark.parametrize("page", [*pages(), "llms.txt", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_lead_to_files_and_headings_that_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", text):
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors(path), f"{page}: {target}#{anchor}"


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands() -> Iterator[tuple[str, str]]:
    """Every `lapwing ...` line of a block, and every one in a sentence that is whole, with its page."""
    for page in pages():
        text = joined((ROOT / page).read_text())
        lines = [line for each in blocks(page) for line in each.text.splitlines() if line.startswith("lapwing ")]
        lines += re.findall(r"^\$ (lapwing .*)$", text, re.MULTILINE)
        inline = re.findall(r"(?<!`)`(lapwing [^`]*)`(?!`)", text)
        lines += [found for found in inline if not re.search(SHORTENED, found)]
        yield from ((page, line) for line in lines)


@pytest.mark.parametrize(("page", "line"), sorted(set(commands())))
def test_a_command_of_the_pages_exists_with_its_options(page: str, line: str) -> None:
    found: Command | Group = main.program
    words = shlex.split(line.removesuffix(" &"), comments=True)[1:]
    while words and isinstance(found, Group):
        if words[0] in ("--help", "--version"):
            return
        found = found.find(words.pop(0))
    if isinstance(found, Command) and words and "--help" not in words:
        with contextlib.suppress(ArgumentMissing):  # a sentence may leave an argument to the reader
            found.parse(words)


# ---- a cluster for the blocks ----


class Cluster:
    def __init__(self, daemon: Daemon, lookupd: Daemon) -> None:
        self.daemon = daemon
        self.ports = {"4150": daemon.tcp, "4151": daemon.http, "6379": daemon.addresses["Redis"], "4161": lookupd.http,
                      "4160": lookupd.tcp}  # fmt: skip

    def addressed(self, text: str) -> str:
        for port, address in self.ports.items():
            text = text.replace(f"127.0.0.1:{port}", address)
        port = self.ports["6379"].rpartition(":")[2]
        text = text.replace("redis-cli ", f"redis-cli -e -p {port} ")
        return text.replace("redis.Redis()", f"redis.Redis(port={port})")

    def shell(self, line: str, cwd: Path) -> str:
        known = {"LAPWING_NSQD_HTTP": self.ports["4151"], "LAPWING_NSQD_TCP": self.ports["4150"]}
        environment = {**os.environ, **known, "PATH": f"{BESIDE_PYTHON}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-c", self.addressed(line)], capture_output=True, text=True, timeout=60,
                              env=environment, cwd=cwd, check=False)  # fmt: skip
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout

    def python(self, text: str, **names: object) -> dict[str, object]:
        """Run a block that may await at its top."""
        code = compile(self.addressed(text), "block", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        asyncio.run(self._run(code, names))
        return names

    async def _run(self, code: CodeType, names: dict[str, object]) -> None:
        found = FunctionType(code, names)()
        if inspect.iscoroutine(found):
            await asyncio.wait_for(found, 30)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with start_nsqlookupd() as lookupd:
        flags = ("--redis-address=127.0.0.1:0",)
        with nsqd(*flags, lookupd_tcp_addresses=(lookupd.tcp,)) as daemon:
            yield Cluster(daemon, lookupd)


def test_the_stack_by_hand_of_the_readme(cluster: Cluster, tmp_path: Path) -> None:
    _, _, *lines = block("README.md", "nsqlookupd &").text.splitlines()  # the daemons are here already
    publish, tail, *rest = [line.partition("  #")[0].strip() for line in lines]

    cluster.shell(publish, tmp_path)
    until(lambda: '"greetings"' in cluster.shell("curl -s http://127.0.0.1:4161/topics", tmp_path), what="nsqlookupd")
    assert "hello\n" in cluster.shell(f"{tail} -n 1", tmp_path)
    told = [cluster.shell(line, tmp_path) for line in rest]
    assert "hello" in told[0]
    assert "hello from Redis" in cluster.shell("lapwing peek greetings", tmp_path)


def test_the_python_of_the_client_page(cluster: Cluster, tmp_path: Path) -> None:
    publishing, consuming, application, shared, reading, blocking, testing = [
        each.text
        for each in blocks("docs/reference/client.md")
        if each.language == "python" and "Admin(" not in each.text
    ]
    cluster.python(publishing)
    here = f'App("127.0.0.1:4150", nsqd_http="{cluster.ports["4151"]}")'
    cluster.python(application.replace('App("127.0.0.1:4150")', here).replace(', run="processes"', ""))
    app = cluster.python(shared.replace("shop.db", str(tmp_path / "shop.db")))["app"]
    assert isinstance(app, App)

    async def enter() -> list[Outcome]:
        async with Broker().run(app) as shop:
            await app.publish("invoices", {"order": 1})
            return await shop.handle()

    assert [each.answer for each in asyncio.run(enter())] == ["finished"]
    endless = consuming.replace("await consumer.wait()", "await consumer.stop()")
    handled, iterated = re.sub(r"^( {12})\.\.\.$", r"\1break", endless, flags=re.MULTILINE).rsplit("\n\n", 1)
    cluster.python(handled)
    cluster.shell("lapwing pub orders one two three", tmp_path)
    cluster.python(f"from lapwing import Consumer\n{iterated}")
    cluster.python(re.sub(r"^( {8})\.\.\.$", r"\1break", reading, flags=re.MULTILINE))
    ended = re.sub(r"^( {12})\.\.\.$", r"\1break", blocking, flags=re.MULTILINE)
    cluster.python(ended.replace("consumer.wait()", "consumer.wait(0)"), handle=print)

    async def bill(message: object) -> None:
        if message.attempts == 1:  # type: ignore[attr-defined]
            raise Requeue(60)

    names = cluster.python(testing, bill=bill)
    asyncio.run(names["test_a_declined_card_is_tried_again_after_a_minute"]())  # type: ignore[operator]


def test_the_administration_of_the_client_page(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.python(block("docs/reference/client.md", "from lapwing import Admin, LetterFilter, NodesFailed").text)
    node = cluster.ports["4151"]

    assert capsys.readouterr().out.splitlines() == [
        f"{node} 5", "0 ()", f"it was not done; {node}: CHANNEL_NOT_FOUND {{}}"]  # fmt: skip


def test_the_tests_of_the_page_on_testing(cluster: Cluster) -> None:
    (text,) = [each.text for each in blocks("docs/how-to/testing.md") if each.language == "python"]
    names = cluster.python(text)
    tests = [value for name, value in names.items() if name.startswith("test_")]

    assert len(tests) == 3
    for test in tests:
        asyncio.run(test())  # type: ignore[operator]


def test_the_pipeline_in_python_has_settings_that_its_kind_knows(cluster: Cluster) -> None:
    names = cluster.python(
        block("docs/reference/pipelines.md", "from lapwing.spark.pipelines.python import pipeline").text
    )

    assert callable(names["large_orders"])


def test_the_commands_and_the_python_of_the_redis_page(cluster: Cluster, tmp_path: Path) -> None:
    start, add, group, read, acknowledge = (
        block("docs/reference/redis.md", "nsqd --data-path=data --redis-address=127.0.0.1:6379")
        .text.replace("orders", "redis-orders")
        .splitlines()
    )
    assert "--redis-address" in start
    cluster.shell(add, tmp_path)
    cluster.shell(group, tmp_path)
    assert '{"id": 1}' in cluster.shell(read, tmp_path)
    cluster.shell(acknowledge, tmp_path)
    for pasted in [each.text for each in blocks("docs/reference/redis.md") if each.language == "python"]:
        cluster.python(pasted)
    assert '{"id": 1}' in cluster.shell("lapwing peek orders", tmp_path)


def test_the_commands_and_the_python_of_the_page_on_schedules(cluster: Cluster, tmp_path: Path) -> None:
    for each in blocks("docs/how-to/schedules.md"):
        if each.language == "sh":
            for line in each.text.splitlines():
                cluster.shell(line.replace("curl ", "curl -sf ", 1), tmp_path)
    app = cluster.python(block("docs/how-to/schedules.md", "from lapwing import App").text)["app"]
    assert isinstance(app, App)

    async def enter() -> list[Outcome]:
        async with Broker().run(app) as shop:
            return await shop.advance(300)

    assert [each.answer for each in asyncio.run(enter())] == ["finished"]


def test_the_commands_of_the_page_on_keys(cluster: Cluster, tmp_path: Path) -> None:
    cluster.shell("lapwing topic create orders || true", tmp_path)
    for channel in ("billing", "mail"):
        cluster.shell(f"lapwing channel create orders/{channel} || true", tmp_path)
    commands = [each for each in blocks("docs/how-to/keys.md") if each.language == "sh"]
    assert commands
    for each in commands:
        for line in each.text.splitlines():
            cluster.shell(line.replace("curl ", "curl -sf ", 1), tmp_path)


def test_the_commands_of_the_pages_on_failures_and_security(cluster: Cluster, tmp_path: Path) -> None:
    cluster.shell("lapwing topic create orders", tmp_path)
    cluster.shell("lapwing channel create orders/billing || true", tmp_path)
    tour = joined((ROOT / "docs" / "reference" / "failure.md").read_text())
    tour = tour[tour.index("## Quick tour") : tour.index("## Four answers")]
    rest = [
        each for each in blocks("docs/reference/failure.md") if each.first.startswith("curl") and each.text not in tour
    ]
    rest += [each for each in blocks("docs/reference/security.md") if each.language == "sh"]

    assert len(rest) == 5
    rest += [each for each in blocks("docs/reference/headers.md") if each.language == "sh"]
    for each in rest:
        for line in each.text.splitlines():
            cluster.shell(line.replace("curl ", "curl -sf ", 1), tmp_path)
