"""lapwing seek: move a channel to another place of its log."""

from typing import TYPE_CHECKING, Annotated

from lapwing.cli import administer
from lapwing.cli.administer import CHANGE, ChangeFlags, Place
from lapwing.cli.commands import Argument, UsageError, command
from lapwing.errors import ConfigError, LapwingError

if TYPE_CHECKING:
    from lapwing.client.admin import Place as SeekPlace
    from lapwing.client.admin_results import Results, Seek

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
    from lapwing.client.admin import target

    try:
        target(to)
    except ConfigError as error:
        raise UsageError(str(error)) from error
    move(place, to, flags)


def move(place: str, to: "SeekPlace", flags: ChangeFlags, *, backwards: bool = False) -> None:
    """Preview a seek on each node, ask, and carry it out. With `backwards`, a seek that skips messages is refused."""
    topic, channel = administer.split_place(place)

    def confirmed(plan: "Results[Seek]") -> bool:
        skipped = sum(each.skipped for each in plan.answers.values())
        if backwards and skipped:
            raise LapwingError(f"{place} is behind that place already: {skipped:,} messages would be skipped; "
                               "`lapwing seek` does that")  # fmt: skip
        lines = administer.plan_lines(plan, _effect)
        administer.confirm(f"This will move {place}:\n{lines}\nContinue?", yes=flags.yes)
        return True

    results = administer.carry_out(
        flags, lambda admin: admin.seek(topic, channel, to, dry_run=flags.dry_run, confirm=confirmed)
    )
    administer.report(
        results, lambda answer: f"{'would go' if answer.dry_run else 'moved'} {_effect(answer)}", as_json=flags.as_json
    )


def _effect(answer: "Seek") -> str:
    return (f"from {answer.cursor:,} to {answer.sequence:,}: {answer.again:,} messages delivered again, "
            f"{answer.skipped:,} skipped")  # fmt: skip
