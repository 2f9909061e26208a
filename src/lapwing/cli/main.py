"""lapwing: one program for people; each command is a module that is imported when it is called."""

import logging
import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import typer
import typer.core

from lapwing import __version__
from lapwing.cli.streams import open_closed
from lapwing.errors import ConfigError, LapwingError

COMMANDS: Final = {
    "up": "Run the whole stack on this machine; Ctrl-C stops it.",
    "pub": "Publish messages: arguments, lines of stdin, or a file.",
    "sub": "Consume a channel and print what arrives.",
    "tail": "Follow a topic without taking anything from anyone; --since starts in the past.",
    "peek": "Show messages that lie in a topic's log, without consuming them.",
    "topics": "List topics with their depths and rates.",
    "channels": "List channels with who consumes them and what waits.",
    "top": "Watch topics and channels live.",
    "check": "Say whether all is well, with an exit code for monitoring.",
    "doctor": "Look for what would make lapwing slow or unsafe on this machine.",
    "bench": "Put load on an nsqd and measure it.",
    "log": "Look into the logs of a data path.",
    "pipeline": "Run data pipelines on Spark.",
}


class Commands(typer.core.TyperGroup):
    """The commands by name; the real one is loaded only when it is called, so that `--help` is quick."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        return name, load(str(name)), rest


def load(name: str) -> Any:
    """The command of this name, from its module."""
    return typer.main.get_command(import_module(f"lapwing.cli.{name}").app)


app = typer.Typer(
    cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="lapwing: a realtime message queue, wire-compatible with NSQ. Each command explains itself with --help.",
    epilog="Example: lapwing up --demo",
)


def _placeholder() -> None:
    """Stands in the list of commands until the command is loaded."""


for _name, _help in COMMANDS.items():
    if find_spec(f"lapwing.cli.{_name}") is not None:
        app.command(_name, help=_help)(_placeholder)


def _version(asked: bool) -> None:
    if asked:
        from lapwing import kernel

        twin = "compiled" if kernel.COMPILED else "pure"
        print(f"lapwing v{__version__} (python {sys.version.split()[0]}, {twin} kernel)")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """What all commands share."""


def main() -> None:
    """The program: 0 done, 1 it failed, 2 it was asked for wrongly, 130 stopped by Ctrl-C."""
    open_closed()
    logging.getLogger("lapwing").addHandler(logging.NullHandler())  # what fails is told once, by the command itself
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # here, where a full disk can still be told of
    except ConfigError as error:
        print(f"lapwing: {error}", file=sys.stderr)
        sys.exit(2)
    except (LapwingError, OSError) as error:
        if isinstance(error, OSError):
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115  what is left must not fail a second time at exit
        if not isinstance(error, BrokenPipeError):  # then whoever reads has seen enough
            print(f"lapwing: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
