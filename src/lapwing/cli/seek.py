"""lapwing seek: move a channel to another place of its log."""

from typing import TYPE_CHECKING, Annotated, Any

from lapwing.cli import administer
from lapwing.cli.administer import CHANGE, ChangeFlags, Place
from lapwing.cli.commands import Argument, UsageError, command
from lapwing.errors import ConfigError, LapwingError

if TYPE_CHECKING:
    from lapwing.client.cluster_changes import NodeResult

_WORDS = ("earliest", "latest", "bookmark")


@command(example="lapwing seek orders/billing earliest")
def app(
    place: Place,
    to: Annotated[
        str,
        Argument(metavar="WHERE", help="earliest, latest, bookmark (undo), a sequence, a time, or 2h (ago).",
                 complete=lambda text: _WORDS),
    ],
    flags: ChangeFlags = CHANGE,
) -> None:  # fmt: skip
    """Move a channel to another place of the topic's log, on every node that has the topic.

    Messages behind the new place are delivered again, messages before it are skipped; both are counted first, and the
    command asks. `lapwing seek TOPIC/CHANNEL bookmark` goes back to where the channel was.
    """
    move(place, target_of(to), flags)


def target_of(text: str) -> Any:
    """Return where to seek to, as `/channel/seek` wants it. Raises `UsageError`."""
    from lapwing.client.format import parse_span

    if text in _WORDS:
        return text
    if text.isascii() and text.isdigit():
        return {"sequence": int(text)}
    if len(text) >= 10 and text[:4].isdigit() and text[4] == "-":
        return {"time": text}
    try:
        parse_span(text)
    except ConfigError as error:
        wanted = f"expected {', '.join(_WORDS)}, a sequence, 2026-11-15T09:30:00Z, or 2h (ago)"
        raise UsageError(f"{text}: {wanted}") from error
    return {"back": text}


def move(place: str, to: Any, flags: ChangeFlags, *, backwards: bool = False) -> None:
    """Preview a seek on each node, ask, and carry it out. With `backwards`, a seek that skips messages is refused."""
    topic, channel = administer.split_place(place)
    params = {"topic": topic, "channel": channel}

    def seek(**more: bool) -> "list[NodeResult[Any]]":
        document = {"to": to, **more}
        return administer.on_topic(
            flags, topic, lambda http, at: http.call("POST", at, "/channel/seek", params, document=document)
        )

    planned = seek(dry_run=True)
    if flags.dry_run or not all(result.done for result in planned):
        administer.report(planned, lambda answer: f"would go {_effect(answer)}", as_json=flags.as_json)
        return
    skipped = sum(int((result.answer or {}).get("skipped", 0)) for result in planned)
    if backwards and skipped:
        raise LapwingError(f"{place} is behind that place already: {skipped:,} messages would be skipped; "
                           "`lapwing seek` does that")  # fmt: skip
    plan = "\n".join(f"  {result.node}: {_effect(result.answer)}" for result in planned)
    administer.confirm(f"This will move {place}:\n{plan}\nContinue?", yes=flags.yes)
    administer.report(seek(), lambda answer: f"moved {_effect(answer)}", as_json=flags.as_json)


def _effect(answer: Any) -> str:
    return (f"from {answer['cursor']:,} to {answer['sequence']:,}: {answer['again']:,} messages delivered again, "
            f"{answer['skipped']:,} skipped")  # fmt: skip
