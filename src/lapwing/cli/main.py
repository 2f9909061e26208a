"""lapwing: one program for people; each command is a module that is imported when it is called."""

import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Final

from lapwing import __version__
from lapwing.cli import commands
from lapwing.cli.commands import Command, Group
from lapwing.cli.streams import open_closed
from lapwing.errors import ConfigError, LapwingError

SECTIONS: Final = {
    "Run": {
        "up": "Run the whole stack on this machine; Ctrl-C stops it.",
        "run": "Run the consumers of a Python application.",
        "pipeline": "Run data pipelines on Spark.",
        "sql": "Run a SQL query over topics, archived or not.",
    },
    "Messages": {
        "pub": "Publish messages: arguments, lines of stdin, or a file.",
        "sub": "Consume a channel and print what arrives.",
        "tail": "Follow a topic without consuming; --since starts in the past.",
        "peek": "Show messages of a topic's log without consuming them.",
    },
    "Look": {
        "topics": "List topics with their depths and rates.",
        "channels": "List channels, what waits in them, and their consumers.",
        "top": "Watch topics and channels live.",
        "check": "Check health and lag, with an exit code for monitoring.",
        "docs": "Show the documents that came with lapwing.",
        "doctor": "Look for what would make lapwing slow or unsafe on this machine.",
        "bench": "Put load on an nsqd and measure it.",
        "log": "Look into the logs of a data path.",
        "remote": "Keep copies of data paths in object stores, PostgreSQL or folders.",
        "import-nsqd": "Bring the messages of NSQ's own nsqd into a data path.",
        "import-redis": "Copy streams from a live Redis server.",
    },
    "Administer": {
        "topic": "Create, delete, pause, unpause and empty topics.",
        "channel": "Create, delete, pause, unpause and empty channels.",
        "settings": "Show and change the settings of a topic or channel.",
        "policy": "Settings for every topic or channel whose name matches.",
        "schedule": "Publish messages at a time, every so often, or by a cron expression.",
        "dead": "Look at dead letters, return them to their channels, or drop them.",
        "pending": "List messages that are in flight or wait to be delivered again, and take them.",
        "replay": "Deliver messages of a channel's past again.",
        "seek": "Move a channel to another place of its log.",
        "drain": "Empty a node before it is taken away.",
        "context": "Give clusters names, so that addresses need not be repeated.",
        "completion": "Print the script that completes words in your shell.",
    },
}
COMMANDS: Final = {name: text for section in SECTIONS.values() for name, text in section.items()}


class Program(Group):
    """The commands by name; a command is imported when it is called, so that `--help` is quick."""

    def find(self, name: str) -> Command | Group:
        """Return the command of that name, from its module. Raises `UsageError`."""
        if name in COMMANDS and available(name):
            self.commands[name] = load(name)
        return super().find(name)

    def rows(self) -> list[tuple[str, str]]:
        """Return each command and what it does, without importing it."""
        return [(name, text) for name, text in COMMANDS.items() if available(name)]

    def help_text(self, path: str, width: int | None = None) -> str:
        """Return the commands by section."""
        width = width or commands.terminal_width()
        parts = [f"Usage: {path} COMMAND ...", self.help]
        for title, section in SECTIONS.items():
            rows = [(name, text) for name, text in section.items() if available(name)]
            if rows:
                parts.append(f"{title}:\n" + commands.columns(rows, width))
        options = [("--version", "Show the version."), ("--help", "Show this help.")]
        return "\n\n".join([*parts, "Options:\n" + commands.columns(options, width), f"Example: {self.example}"])


def _module(name: str) -> str:
    return f"lapwing.cli.{name.replace('-', '_')}"


def available(name: str) -> bool:
    """Return whether the module of a command is installed."""
    return find_spec(_module(name)) is not None


def load(name: str) -> Command | Group:
    """Return the command of this name, from its module."""
    found: Command | Group = import_module(_module(name)).app
    return found


program: Final = Program(
    "lapwing",
    "lapwing: a realtime message queue, wire-compatible with NSQ. Each command explains itself with --help.",
    example="lapwing up --demo",
)


def version() -> str:
    """Return the versions of lapwing and of the NSQ that its protocol is compatible with."""
    from lapwing import kernel
    from lapwing.names import NSQ_VERSION

    twin = "compiled" if kernel.COMPILED else "pure Python"
    python = sys.version.split()[0]
    return f"lapwing {__version__} (speaks NSQ {NSQ_VERSION}'s protocol; Python {python}, {twin} kernel)"


def _run(words: Sequence[str]) -> None:
    if words[:1] == ["__complete"]:
        for found in program.complete(words[1:-1], words[-1] if len(words) > 1 else ""):
            print(found)
    elif words[:1] == ["--version"]:
        print(version())
    else:
        commands.run(program, "lapwing", words)


def main() -> None:
    """Run the program: 0 done, 1 it failed, 2 the command line is wrong, 130 stopped by Ctrl-C."""
    open_closed()
    logging.getLogger("lapwing").addHandler(logging.NullHandler())  # the command itself reports what fails
    try:
        try:
            _run(sys.argv[1:])
        finally:
            sys.stdout.flush()  # here, where a full disk can still be reported
    except ConfigError as error:
        print(f"lapwing: {error}", file=sys.stderr)
        sys.exit(2)
    except (LapwingError, OSError) as error:
        if isinstance(error, OSError):
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115  the rest must not fail a second time at exit
        if not isinstance(error, BrokenPipeError):  # then the reader has seen enough
            print(f"lapwing: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
