"""The files for operators name programs, flags and metrics that exist."""

import configparser
import json
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import daemons
from documents import script
from lapwing.cli.commands import SCRIPTS

ROOT = Path(__file__).parent.parent.parent
PACKAGING = ROOT / "packaging"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROGRAMS = PROJECT["project"]["scripts"].keys()
UNITS = sorted((PACKAGING / "systemd").glob("*.service"))


@pytest.fixture(scope="module")
def metrics() -> set[str]:
    """The names of all samples of an nsqd with a channel."""
    with daemons.nsqd() as nsqd:
        for call in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c"):
            request = urllib.request.Request(nsqd.url + call, data=b"")
            urllib.request.urlopen(request, timeout=60).close()
        schedule = json.dumps({"topic": "t", "body": "b", "every": "1d"}).encode()
        request = urllib.request.Request(f"{nsqd.url}/schedules/s", data=schedule, method="PUT")
        urllib.request.urlopen(request, timeout=60).close()
        with urllib.request.urlopen(f"{nsqd.url}/metrics", timeout=60) as answer:
            text = answer.read().decode()
    return {match[1] for match in re.finditer(r"^([a-z_]\w*)[{ ]", text, re.MULTILINE)}


def expressions() -> list[str]:
    """Every expression of the dashboard and the alert rules."""
    dashboard = json.loads((PACKAGING / "grafana" / "dashboard.json").read_text())
    rules = yaml.safe_load((PACKAGING / "prometheus" / "alerts.yaml").read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    found += [variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    return found + [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("expression", expressions())
def test_every_expression_is_about_metrics_that_nsqd_has(expression: str, metrics: set[str]) -> None:
    used = set(re.findall(r"\b(?:lapwing|process)_\w+", expression))

    assert used
    assert used <= metrics
    assert expression.count("(") == expression.count(")")


def flags_of(program: str) -> str:
    command = [*daemons.program(program), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


def check_command(words: list[str]) -> None:
    """Fail unless a command line names a program of ours and flags that it has."""
    program = Path(words[0]).name
    assert program in PROGRAMS
    usage = flags_of(program)
    for flag in re.findall(r"--([a-z-]+)", " ".join(words[1:])):
        assert f"-{flag}" in usage, f"{program} has no flag {flag}"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_a_program_of_ours_with_flags_that_it_has(unit: Path) -> None:
    parsed = configparser.ConfigParser(interpolation=None, strict=False)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read(unit)

    check_command(parsed["Service"]["ExecStart"].split())
    assert unit.stem in parsed["Service"]["ExecStart"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed here")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_understands_a_unit(unit: Path, tmp_path: Path) -> None:
    copy = tmp_path / unit.name  # with a program that exists here
    copy.write_text(re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", unit.read_text()))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def services() -> dict[str, Any]:
    compose: dict[str, Any] = yaml.safe_load((PACKAGING / "docker" / "compose.yaml").read_text())
    return compose["services"]


@pytest.mark.parametrize("name", services())
def test_a_service_of_the_compose_file_is_a_program_of_ours(name: str) -> None:
    service = services()[name]

    assert service["command"][0] == name
    check_command(service["command"])
    assert set(service.get("depends_on", [])) <= services().keys()


DOCKERFILE = (PACKAGING / "docker" / "Dockerfile").read_text().splitlines()
BUILD_WITHOUT_KERNEL = """
import sys
sys.modules["Cython"] = None
from setuptools import build_meta
print(build_meta.build_wheel(sys.argv[1]))
"""


def copied(into: Path) -> None:
    """Do what the COPY lines of the Dockerfile do with the files of this clone."""
    left_out = shutil.ignore_patterns("*.so", "*.c", "__pycache__", "*.egg-info")
    for line in DOCKERFILE:
        if not line.startswith("COPY") or "--from" in line:
            continue
        *sources, target = line.split()[1:]
        for pattern in sources:
            found = list(ROOT.glob(pattern))
            assert found, f"{line}: there is no {pattern}"
            for path in found:
                if path.is_dir():
                    shutil.copytree(path, into / target, ignore=left_out, dirs_exist_ok=True)
                else:
                    shutil.copy(path, into / target)


def test_the_image_has_all_files_that_the_wheel_is_made_of(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    copied(source)
    command = [sys.executable, "-c", BUILD_WITHOUT_KERNEL, str(tmp_path)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    with zipfile.ZipFile(tmp_path / done.stdout.splitlines()[-1]) as wheel:
        names = set(wheel.namelist())
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    data = PROJECT["tool"]["setuptools"]["data-files"]
    named = [(folder, pattern) for folder, patterns in data.items() for pattern in patterns]
    wanted = {f"{folder}/{path.name}" for folder, pattern in named for path in ROOT.glob(pattern) if path.is_file()}
    installed = {name.partition(".data/data/")[2] for name in names}

    assert sources <= names
    assert wanted <= installed
    for folder, pattern in named:
        assert [path for path in ROOT.glob(pattern) if path.is_file()], f"no file for {folder}: {pattern}"
    check_command(json.loads(DOCKERFILE[-1].removeprefix("CMD ")))


def test_the_man_pages_are_those_of_the_programs() -> None:
    again = "run `.venv/bin/python scripts/reference.py`"
    kept = {path.name: path.read_text() for path in (PACKAGING / "man").glob("*.1")}

    assert {f"{program}.1" for program in PROGRAMS} == kept.keys()
    assert script("reference.py").pages() == kept, again


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed here")
@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_groff_formats_a_man_page_without_a_warning(program: str) -> None:
    page = PACKAGING / "man" / f"{program}.1"
    done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", page], capture_output=True, text=True, check=False)

    assert done.stderr == ""
    assert f"{program.upper()}(1)" in done.stdout


@pytest.mark.parametrize(("shell", "name"), [("bash", "lapwing"), ("zsh", "_lapwing"), ("fish", "lapwing.fish")])
def test_the_completions_are_those_that_the_command_prints(shell: str, name: str) -> None:
    assert (PACKAGING / "completion" / name).read_text() == SCRIPTS[shell]
