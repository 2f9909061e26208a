"""The dead letters that a command means: which topics on which nodes, and which letters in them."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from lapwing import names
from lapwing.cli import administer, shared
from lapwing.cli.commands import Argument, Option, UsageError

if TYPE_CHECKING:
    from lapwing.client.admin import Admin, LetterFilter
    from lapwing.client.admin_results import Results

T = TypeVar("T")

_ADVICE: Final = "the first dead letter of a channel creates it, and `lapwing dead list` lists all"


def known_dead(incomplete: str) -> list[str]:
    """Return the dead-letter topics of the cluster, and the channels that letters may come from."""
    places = shared.known_places(incomplete)
    ending = f"/{names.DEAD}"
    return [place.removesuffix(ending) if place.endswith(ending) else place for place in places]


Dead = Annotated[
    str,
    Argument(metavar="DEAD", complete=known_dead,
             help="A dead-letter topic; or TOPIC/CHANNEL: the letters of this channel, wherever they are."),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class LetterFlags:
    """The selection of letters; all of them if nothing is given."""

    reason: Annotated[
        str | None, Option(choices=names.DEAD_REASONS, help="Letters that were given up for this reason.")
    ] = None
    error: Annotated[str | None, Option(help="Letters whose error contains this text.")] = None
    text: Annotated[str | None, Option(help="Letters whose body contains this text.")] = None
    pattern: Annotated[
        str | None, Option(metavar="REGEX", help="Letters whose body has this regular expression (RE2).")
    ] = None
    field: Annotated[
        list[str] | None,
        Option(metavar="POINTER=VALUE", help="Letters whose JSON body has this value, such as /customer/id=17."),
    ] = None
    since: Annotated[
        str | None, Option(metavar="TIME", help="Letters given up since then: 2h (ago), 2026-11-15T09:30Z.")
    ] = None
    until: Annotated[str | None, Option(metavar="TIME", help="Letters given up before.")] = None
    source: Annotated[
        str | None, Option(metavar="TOPIC", complete=shared.known_topics, help="Letters of this topic.")
    ] = None
    channel: Annotated[
        str | None, Option(complete=shared.known_channels, help="Letters that this channel gave up.")
    ] = None
    sequence: Annotated[
        list[int] | None, Option(min=0, help="The letter with this sequence in the dead-letter topic of one node.")
    ] = None

    def chosen(self, name: str) -> "LetterFilter":
        """Return the letters of `name` that are meant. Raises `UsageError`."""
        from lapwing.client.admin import LetterFilter

        words = ("reason", "error", "text", "pattern", "since", "until", "channel", "source")
        found: dict[str, str] = {key: getattr(self, key) for key in words if getattr(self, key) is not None}
        for key, value in found.items():
            if not value:  # an empty shell variable must not mean all letters
                raise UsageError(f"--{key} is empty: give a value, or leave it out for all letters")
        if "source" in found:
            found["topic"] = found.pop("source")
        if "/" in name:
            topic, channel = administer.split_place(name)
            if found.get("topic", topic) != topic or found.get("channel", channel) != channel:
                raise UsageError(f"{name} names topic and channel: leave --source and --channel out")
        fields = dict(_field(each) for each in self.field or ())
        return LetterFilter(**found, fields=fields, sequences=self.sequence or ())


def _field(text: str) -> tuple[str, Any]:
    pointer, equals, value = text.partition("=")
    if not equals or not pointer.startswith("/"):
        raise UsageError(f"--field {text}: expected POINTER=VALUE, such as /customer/id=17")
    try:
        return pointer, json.loads(value)
    except ValueError:
        return pointer, value


def carry_out(
    flags: administer.NodeFlags, work: "Callable[[Admin], Awaitable[Results[T]]]"
) -> "Results[T]":
    """Return what `Admin` answers about dead letters. Raises `UsageError` for a sequence of several nodes."""
    return administer.carry_out(flags, work, advice=_ADVICE)
