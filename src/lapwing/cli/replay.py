"""lapwing replay: deliver messages of the past again."""

from typing import Annotated, Any

from lapwing.cli import seek
from lapwing.cli.administer import CHANGE, ChangeFlags, Place
from lapwing.cli.commands import Option, UsageError, command


@command(example="lapwing replay orders/billing --back 2h")
def app(
    place: Place,
    back: Annotated[str, Option(metavar="DURATION", help="Deliver the messages of this time again: 30m, 2h.")] = "",
    since: Annotated[str, Option(help="Deliver messages again from this time on: 2026-11-15T09:30:00Z.")] = "",
    sequence: Annotated[int | None, Option("--from", min=0, help="Deliver again from this sequence on.")] = None,
    flags: ChangeFlags = CHANGE,
) -> None:
    """Deliver messages of a channel's past again, as far as the log holds them; it asks first.

    `lapwing seek TOPIC/CHANNEL bookmark` undoes it.
    """
    given: list[Any] = [
        *([{"back": back}] if back else ()),
        *([{"time": since}] if since else ()),
        *([{"sequence": sequence}] if sequence is not None else ()),
    ]
    if len(given) != 1:
        raise UsageError("give one of --back, --since and --from")
    seek.move(place, given[0], flags, backwards=True)
