"""The site of the documents, and the page of the library, are made of what is there."""

import re
import subprocess
import sys

import pytest
import yaml

from documents import ROOT, script


def test_the_page_of_the_library_has_the_docstrings() -> None:
    written = (ROOT / "docs/reference/api.md").read_text()

    assert written == script("api.py").page(), "run: .venv/bin/python scripts/api.py"


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    listed = set(re.findall(r"^ +- (?:\w+: )?([\w/-]+\.md)$", text, re.MULTILINE))
    there = {place.partition("/")[2] for place in script("site").pages().values()}

    assert {page for page in there if not page.startswith("decisions/")} | {"files/examples.md"} == listed


def test_every_picture_is_shown_by_a_page() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    shown = {name for page in pages for name in re.findall(r"(?:screens|pictures)/([\w.-]+)\)", page.read_text())}
    shown.add(yaml.safe_load(re.sub(r"!\S+", "", (ROOT / "mkdocs.yml").read_text()))["theme"]["favicon"].split("/")[1])
    there = {path.name for folder in ("screens", "pictures") for path in (ROOT / "docs" / folder).iterdir()}

    assert there == shown


def test_lines_of_chinese_text_are_joined_and_those_of_a_program_are_not() -> None:
    text = "先启动、\n再发布。\n\n```sh\nmake run  # 启动\nmake test\n```\n\n- 一、\n  二\n"

    joined = script("site").joined(text)

    assert joined == "先启动、再发布。\n\n```sh\nmake run  # 启动\nmake test\n```\n\n- 一、二\n"


@pytest.mark.slow
def test_the_site_is_built_without_a_warning() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts/site"], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    home = (ROOT / "build/site/index.html").read_text()
    assert 'hreflang="zh"' in home
    assert not re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="https?:', home)
