"""The generator of docs/cli.md, from the help of all programs: `python -m lapwing.cli.reference > docs/cli.md`."""

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from lapwing.cli import main
from lapwing.cli.commands import Command, Group
from lapwing.cli.flags import table

WIDTH: Final = 100

PROGRAMS: Final = {
    "nsqd": ("lapwing.broker.settings.options", "The broker."),
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

Exit codes of `lapwing`: 0 done, 1 it failed, 2 the command line is wrong, 130 ended by Ctrl-C; those of
`lapwing check` and `lapwing doctor` are given below.

Which cluster a command uses: its address flags, else `--context`, else the environment (`LAPWING_NSQD_HTTP`,
`LAPWING_NSQD_TCP`, `LAPWING_LOOKUPD_HTTP`), else the current context, else this machine. A variable may hold several
addresses with spaces between them. `LAPWING_AUTH_SECRET` is the secret for servers that require AUTH (also for
`lapwing bench` and `nsq_stat`), `SSL_CERT_FILE` the certificate authorities for HTTPS.
"""


def reference() -> str:
    """Return the whole document."""
    parts = [HEAD, *_of_command("lapwing", main.program, "##")]
    for name in main.COMMANDS:
        if main.available(name):
            parts += _of_command(f"lapwing {name}", main.load(name), "##")
    parts.append("\n## NSQ's programs\n\nSame names, flags and config keys as NSQ's; flags that lapwing adds are among "
                 "them. Flags may be written with one dash or two.\n")
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


if __name__ == "__main__":
    from lapwing.cli import manpages

    print(reference(), end="")
    if (folder := Path("packaging/man")).is_dir():  # the man pages are made from the same help
        manpages.write(folder)
