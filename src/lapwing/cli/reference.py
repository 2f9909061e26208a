"""docs/cli.md, made from what the programs say of themselves: `python -m lapwing.cli.reference > docs/cli.md`."""

import os
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import typer

from lapwing.cli import main
from lapwing.cli.flags import table

WIDTH: Final = 100

PROGRAMS: Final = {
    "nsqd": ("lapwing.broker.options", "The broker."),
    "nsqlookupd": ("lapwing.lookup.options", "Discovery: who has which topic."),
    "nsqadmin": ("lapwing.admin.options", "The web UI and its JSON API."),
    "nsq_tail": ("lapwing.tools.nsq_tail", "Prints the messages of topics."),
    "nsq_to_file": ("lapwing.tools.nsq_to_file", "Writes topics to files."),
    "nsq_to_http": ("lapwing.tools.nsq_to_http", "Hands messages to HTTP endpoints."),
    "nsq_to_nsq": ("lapwing.tools.nsq_to_nsq", "Copies topics to other nsqds."),
    "nsq_stat": ("lapwing.tools.nsq_stat", "Prints a channel's figures again and again."),
    "to_nsq": ("lapwing.tools.to_nsq", "Publishes what it reads from stdin."),
}

HEAD: Final = """\
# Commands

Made from the programs' own `--help` by `python -m lapwing.cli.reference > docs/cli.md`; a test compares.

Exit codes of `lapwing`: 0 done, 1 it failed, 2 it was asked for wrongly, 130 ended by Ctrl-C; `lapwing check` and
`lapwing doctor` say theirs below. `lapwing --install-completion` teaches the shell to complete commands and options.
"""


def reference() -> str:
    """The whole document."""
    parts = [HEAD, "\n## lapwing\n", *_described("lapwing", typer.main.get_command(main.app))]
    for name in main.COMMANDS:
        if find_spec(f"lapwing.cli.{name}") is not None:
            parts += _of_command(f"lapwing {name}", main.load(name), "##")
    parts.append("\n## NSQ's programs\n\nSame names, flags and config keys as NSQ's; what lapwing adds stands among "
                 "them. Flags may be written with one dash or two.\n")
    for name, (module, what) in PROGRAMS.items():
        if find_spec(module) is not None:
            parts.append(f"\n### {name}\n\n{what}\n\n{table(_options_in(module))}")
    return "".join(parts)


def _options_in(module: str) -> type[Any]:
    """The class of a program's options in its module."""
    found = import_module(module)
    return next(
        kind
        for name, kind in vars(found).items()
        if name.endswith("Options") and isinstance(kind, type) and kind.__module__ == module
    )


def _of_command(path: str, command: Any, level: str) -> Iterator[str]:
    yield f"\n{level} {path}\n"
    yield from _described(path, command)
    for name, sub in getattr(command, "commands", {}).items():
        if not sub.hidden:
            yield from _of_command(f"{path} {name}", sub, level + "#")


def _described(path: str, command: Any) -> list[str]:
    context = command.make_context(path, [], resilient_parsing=True, terminal_width=WIDTH, max_content_width=WIDTH)
    return ["\n```\n", context.get_help().rstrip(), "\n```\n"]


if __name__ == "__main__":
    os.environ["COLUMNS"] = str(WIDTH)
    print(reference(), end="")
