"""Man pages of every program, from its own help: `python -m lapwing.cli.manpages packaging/man`."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lapwing import __version__
from lapwing.cli import main
from lapwing.cli.commands import Command, Group
from lapwing.cli.reference import PROGRAMS, options_in
from lapwing.net.options import settings

_ABOUT = "a realtime message queue, wire-compatible with NSQ"
_SEE_ALSO = ("lapwing", *PROGRAMS)


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
            parts += _command(f"lapwing {name}", main.load(name))
    parts += [".SH EXIT STATUS", "0 done, 1 it failed, 2 the command line is wrong, 130 ended by Ctrl-C."]
    parts += [
        ".SH ENVIRONMENT",
        _escaped(
            "LAPWING_NSQD_HTTP, LAPWING_NSQD_TCP and LAPWING_LOOKUPD_HTTP name the cluster where flags and contexts do "
            "not; LAPWING_AUTH_SECRET is the secret for servers that require AUTH."
        ),
    ]
    return _ended(parts, "lapwing")


def _command(path: str, found: Command | Group) -> Iterator[str]:
    yield f".SS {_escaped(path)}"
    if isinstance(found, Group):
        yield _paragraphs(found.help)
        for name, command in found.commands.items():
            yield from _command(f"{path} {name}", command)
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


def write(folder: Path) -> None:
    """Write every page into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
