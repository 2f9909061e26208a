"""The first five minutes of a new user, in order: install, start, publish, consume, fail, crash, measure.

The wheel is installed as on a machine without a C compiler, into an environment that has only what it depends on.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemons import until
from documents import ROOT, block

LINK = re.compile(r"\]\((?!https?:)([^)#]+)")  # of a page to a file
WITHOUT_CYTHON = "import sys; sys.modules['Cython'] = None; from setuptools import build_meta as b; b.build_wheel({!r})"
FAILING = """
    import asyncio, sys
    from lapwing import Consumer

    async def bill(message):
        if sys.argv[1] == "broken":
            raise ValueError("no such card")
        print(message.body.decode(), flush=True)

    async def main():
        async with Consumer("orders", "billing", bill, nsqd="127.0.0.1:4150") as consumer:
            await consumer.wait()

    asyncio.run(main())
"""


class Machine:
    """A machine on which lapwing was just installed."""

    def __init__(self, place: Path) -> None:
        self.bin = place / "venv" / "bin"
        self.place = place
        self.addresses: dict[str, str] = {}
        self.up: subprocess.Popen[str] | None = None

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LAPWING_")}
        http, tcp = self.addresses.get("4151", ""), self.addresses.get("4150", "")
        known = {"LAPWING_NSQD_HTTP": http, "LAPWING_NSQD_TCP": tcp}
        return {**kept, **known, "PATH": f"{self.bin}:{os.environ['PATH']}", "HOME": str(self.place)}

    def addressed(self, text: str) -> str:
        for port, address in self.addresses.items():
            text = text.replace(f"127.0.0.1:{port}", address)
        return text

    def run(self, *command: str) -> str:
        done = subprocess.run(command, env=self.environment(), cwd=self.place, capture_output=True, text=True,
                              timeout=60, check=False)  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def python(self, code: str, *arguments: str) -> subprocess.Popen[str]:
        program = [str(self.bin / "python"), "-u", "-c", self.addressed(textwrap.dedent(code)), *arguments]
        return subprocess.Popen(program, env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                text=True, cwd=self.place)  # fmt: skip

    def shell(self, text: str) -> str:
        return "".join(self.run("bash", "-c", line) for line in self.addressed(text).splitlines())


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    place = tmp_path_factory.mktemp("machine")
    source = place / "clone"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.so", "*.c", "*.egg-info"))
    for name in ("packaging", "docs", "examples"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for each in ("pyproject.toml", "setup.py", "LICENSE", "llms.txt", *(path.name for path in ROOT.glob("*.md"))):
        shutil.copy(ROOT / each, source)
    build = [sys.executable, "-c", WITHOUT_CYTHON.format(str(place))]
    subprocess.run(build, cwd=source, check=True, capture_output=True, timeout=120)
    (wheel,) = place.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "venv"], check=True, timeout=60)
    made = Machine(place)
    (packages,) = (place / "venv" / "lib").glob("python*/site-packages")
    uv = Path(sys.executable).parent / "uv"
    install = [uv, "pip", "install", "-q", "--no-deps", "--offline", "--no-index", "--python", made.bin / "python"]
    subprocess.run([*install, wheel], check=True, timeout=60)
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")  # of the tests; not their lapwing
    yield made
    if made.up is not None:
        made.up.terminate()
        made.up.communicate(timeout=60)


def test_1_the_wheel_is_installed_without_a_compiler(machine: Machine) -> None:
    assert "pure Python kernel" in machine.run("lapwing", "--version")
    assert (machine.bin.parent / "share" / "man" / "man1" / "nsqd.1").exists()
    assert (machine.bin.parent / "share" / "bash-completion" / "completions" / "lapwing").exists()
    assert str(machine.place) in machine.run("python", "-c", "import lapwing; print(lapwing.__file__)")


def test_1_the_documents_come_along_and_their_links_lead_somewhere(machine: Machine) -> None:
    listed = machine.run("lapwing", "docs")
    root = Path(machine.run("lapwing", "docs", "readme", "--path").strip()).parent
    pages = (*root.rglob("*.md"), root / "llms.txt")
    links = [(page, link) for page in pages for link in LINK.findall(page.read_text())]

    assert "troubleshooting  Troubleshooting, by symptom\n" in listed
    assert machine.run("lapwing", "docs", "docs/explanation/why.md") == (ROOT / "docs/explanation/why.md").read_text()
    assert len(links) > 100
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


def test_2_the_stack_starts_and_names_its_addresses(machine: Machine) -> None:
    command = [machine.bin / "lapwing", "up", "--no-spark", "--no-admin", "--json", "--every", "60s"]
    machine.up = subprocess.Popen(command, env=machine.environment(), cwd=machine.place, stdout=subprocess.PIPE,
                                  text=True)  # fmt: skip
    assert machine.up.stdout is not None
    for line in machine.up.stdout:
        if (document := json.loads(line)).get("up"):
            break
    words = document["up"]["nsqd"].replace(",", "").split()
    machine.addresses = {"4150": words[1], "4151": words[3], "6379": words[5]}

    assert "OK" in machine.run("lapwing", "check")


def test_3_what_is_published_can_be_followed(machine: Machine) -> None:
    machine.run("lapwing", "pub", "greetings", "hello", "world")

    assert machine.run("lapwing", "tail", "greetings", "--last", "2", "--count", "2") == "hello\nworld\n"


def test_4_the_consumer_of_the_readme_runs_as_pasted(machine: Machine) -> None:
    pasted = machine.python(block("README.md", "import asyncio").text)

    assert pasted.communicate(timeout=60)[0] == "b'{\"id\": 1}'\n"


def test_5_a_handler_that_fails_makes_a_dead_letter_that_can_be_sent_back(machine: Machine) -> None:
    commands = block("README.md", "lapwing topic create orders --channel billing")
    create, settings, show, redrive = commands.text.splitlines()
    machine.shell(f"{create}\n{settings.replace('retry_first=1s', 'retry_first=10ms')}")
    machine.run("lapwing", "pub", "orders", "order 7")
    broken = machine.python(FAILING, "broken")
    try:
        until(lambda: "orders.billing.dead" in machine.run("lapwing", "topics"), seconds=60, what="a dead letter")
        assert "ValueError: no such card" in machine.shell(show)
    finally:
        broken.kill()
        broken.communicate()
    mended = machine.python(FAILING, "mended")
    machine.shell(redrive)
    try:
        assert mended.stdout is not None
        assert mended.stdout.readline() == "order 7\n"
    finally:
        mended.kill()
        mended.communicate()


def test_6_after_kill_9_nothing_is_lost(machine: Machine) -> None:
    machine.run("lapwing", "pub", "survivors", *(f"message {number}" for number in range(100)))
    (pid,) = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and is_nsqd(pid, str(machine.place))]
    os.kill(pid, signal.SIGKILL)

    def back() -> bool:
        done = subprocess.run([machine.bin / "lapwing", "check"], env=machine.environment(), capture_output=True,
                              check=False)  # fmt: skip
        return done.returncode == 0

    until(back, seconds=60, what="nsqd")
    told = machine.run("lapwing", "sub", "survivors", "archive", "--count", "100")
    assert sorted(told.splitlines()) == sorted(f"message {number}" for number in range(100))


def is_nsqd(pid: str, place: str) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(word.endswith(b"/nsqd") for word in words[:2]) and any(place.encode() in word for word in words)


def test_7_the_bench_counts_what_the_server_has_taken(machine: Machine) -> None:
    where = ("--nsqd-tcp-address", machine.addresses["4150"], "--nsqd-http-address", machine.addresses["4151"])
    bench = machine.run("lapwing", "bench", "pub", "--count", "5000", "--topic", "measured", "--json", *where)
    told = json.loads(bench)
    topics = json.loads(machine.run("lapwing", "topics", "--json"))

    assert {topic["topic"]: topic["messages"] for topic in topics}["measured"] == told["messages"] == 5000
    assert told["messages_per_second"] == pytest.approx(5000 / told["seconds"], rel=0.02)
