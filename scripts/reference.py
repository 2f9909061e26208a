#!/usr/bin/env python3
"""Write docs/reference/cli.md and packaging/man from the help of all programs: `python scripts/reference.py`."""

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from lapwing import __version__
from lapwing.cli import main
from lapwing.cli.commands import Command, Group
from lapwing.cli.flags import table
from lapwing.net.options import settings

ROOT: Final = Path(__file__).parents[1]

WIDTH: Final = 100

PROGRAMS: Final = {
    "nsqd": ("lapwing.broker.settings.options", "The broker."),
    "nsqlookupd": ("lapwing.lookup.options", "Finds the nsqds that have a topic."),
    "nsqadmin": ("lapwing.admin.options", "The web UI and its JSON API."),
    "nsq_tail": ("lapwing.tools.nsq_tail", "Prints the messages of topics."),
    "nsq_to_file": ("lapwing.tools.nsq_to_file", "Writes topics to files."),
    "nsq_to_http": ("lapwing.tools.nsq_to_http", "Sends messages to HTTP endpoints."),
    "nsq_to_nsq": ("lapwing.tools.nsq_to_nsq", "Copies topics to other nsqds."),
    "nsq_stat": ("lapwing.tools.nsq_stat", "Prints the figures of a channel at an interval."),
    "to_nsq": ("lapwing.tools.to_nsq", "Publishes what it reads from stdin."),
}

HEAD: Final = """\
# Commands

This page is written by `scripts/reference.py` from the `--help` of the programs.

`lapwing` exits with 0 after success, 1 after a failure, 2 if the command line is wrong, and 130
after Ctrl-C. `lapwing check` and `lapwing doctor` have exit codes of their own, which are described
below.

A command finds its cluster by its address flags, else by `--context`, else by the environment
(`LAPWING_NSQD_HTTP`, `LAPWING_NSQD_TCP`, `LAPWING_LOOKUPD_HTTP`), else by the current context;
without any of these it uses this machine. A variable may hold several addresses with spaces between
them. `LAPWING_AUTH_SECRET` is the secret for servers that require AUTH (also for `lapwing bench` and
`nsq_stat`), and `SSL_CERT_FILE` names the certificate authorities for HTTPS.
"""


def reference() -> str:
    """Return the whole document."""
    parts = [HEAD, *_of_command("lapwing", main.program, "##")]
    for name in main.COMMANDS:
        if main.available(name):
            parts += _of_command(f"lapwing {name}", main.load(name), "##")
    parts.append("\n## NSQ's programs\n\nThey have the names, flags and config keys of NSQ's programs, and the\n"
                 "flags that lapwing adds. Flags may be written with one dash or two.\n")
    for name, (module, what) in PROGRAMS.items():
        if find_spec(module) is not None:
            parts.append(f"\n### {name}\n\n{what}\n\n{table(options_in(module))}")
    return "".join(parts)


def options_in(module: str) -> type[Any]:
    """Return the class of a program's options in its module."""
    found = import_module(module)
    return next(
        kind
        for name, kind in vars(found).items()
        if name.endswith("Options") and isinstance(kind, type) and kind.__module__ == module
    )


def _of_command(path: str, found: Command | Group, level: str) -> Iterator[str]:
    yield f"\n{level} {path}\n\n```\n{found.help_text(path, WIDTH)}\n```\n"
    if isinstance(found, Group) and found is not main.program:
        for name, command in found.commands.items():
            yield from _of_command(f"{path} {name}", command, level + "#")


# ---- man pages ----

_ABOUT: Final = "a realtime message queue, wire-compatible with NSQ"
_SEE_ALSO: Final = ("lapwing", *PROGRAMS)


def pages() -> dict[str, str]:
    """Return the text of each page by its file name."""
    found = {"lapwing.1": _lapwing()}
    for name, (module, what) in PROGRAMS.items():
        found[f"{name}.1"] = _program(name, what, options_in(module))
    return found


def _lapwing() -> str:
    parts = [_head("lapwing", _ABOUT), ".SH SYNOPSIS", ".B lapwing", ".I COMMAND ...", ".SH DESCRIPTION"]
    parts += [_escaped(main.program.help), ".SH COMMANDS"]
    for name in main.COMMANDS:
        if main.available(name):
            parts += _man_command(f"lapwing {name}", main.load(name))
    parts += [".SH EXIT STATUS", "0 done, 1 it failed, 2 the command line is wrong, 130 ended by Ctrl-C."]
    parts += [
        ".SH ENVIRONMENT",
        _escaped(
            "LAPWING_NSQD_HTTP, LAPWING_NSQD_TCP and LAPWING_LOOKUPD_HTTP name the cluster where flags and contexts do "
            "not; LAPWING_AUTH_SECRET is the secret for servers that require AUTH."
        ),
    ]
    return _ended(parts, "lapwing")


def _man_command(path: str, found: Command | Group) -> Iterator[str]:
    yield f".SS {_escaped(path)}"
    if isinstance(found, Group):
        yield _paragraphs(found.help)
        for name, command in found.commands.items():
            yield from _man_command(f"{path} {name}", command)
        return
    yield f"{_escaped(found.usage(path).removeprefix('Usage: '))}\n.PP\n{_paragraphs(found.help)}"
    for heading, text in found.rows():
        yield f".TP\n.B {_escaped(heading)}\n{_escaped(text)}"
    yield f".PP\nExample:\n.PP\n.RS\n.nf\n{_escaped(found.example)}\n.fi\n.RE"


def _program(name: str, what: str, options: type[Any]) -> str:
    parts = [_head(name, what.rstrip(".")), ".SH SYNOPSIS", f".B {name}", "[FLAGS]", ".SH DESCRIPTION", _escaped(what)]
    parts.append("Flags may be written with one dash or two, and are the same as those of NSQ's program of this name.")
    parts.append(".SH FLAGS")
    for setting in sorted(settings(options), key=lambda setting: setting.flag):
        default = setting.default(options)
        notes = [f"default {default}"] if default else []
        notes += ["may be given several times"] if setting.kind.repeatable else []
        text = setting.help + (f" ({', '.join(notes)})" if notes else "")
        parts.append(f".TP\n.B {_escaped(f'--{setting.flag} {setting.kind.name}'.rstrip())}\n{_escaped(text)}")
    return _ended(parts, name)


def _head(name: str, what: str) -> str:
    title = f'.TH {_escaped(name.upper())} 1 "" "lapwing {__version__}" "lapwing"'
    return f"{title}\n.SH NAME\n{_escaped(name)} \\- {_escaped(what)}"


def _ended(parts: list[str], name: str) -> str:
    others = ", ".join(f"\\fB{_escaped(other)}\\fR(1)" for other in _SEE_ALSO if other != name)
    return "\n".join([*parts, ".SH SEE ALSO", others]) + "\n"


def _paragraphs(text: str) -> str:
    return "\n.PP\n".join(_escaped(" ".join(paragraph.split())) for paragraph in text.split("\n\n"))


def _escaped(text: str) -> str:
    """Return text that roff prints as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("\n", " ")
    return f"\\&{text}" if text.startswith((".", "'")) else text


if __name__ == "__main__":
    (ROOT / "docs/reference/cli.md").write_text(reference())
    for name, text in pages().items():
        (ROOT / "packaging/man" / name).write_text(text)
