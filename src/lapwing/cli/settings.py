"""lapwing settings: show and change the settings of a topic or channel."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from lapwing.cli import administer, shared
from lapwing.cli.administer import NODES, NodeFlags
from lapwing.cli.commands import Argument, Option, UsageError, command

if TYPE_CHECKING:
    from lapwing.client.admin_results import Settings


def _places(incomplete: str) -> list[str]:
    return [*shared.known_topics(incomplete), *shared.known_places(incomplete)]


@command(example="lapwing settings orders/billing max_attempts=5 retry_first=1s")
def app(
    place: Annotated[
        str, Argument(metavar="TOPIC[/CHANNEL]", help="A topic, or a channel as topic/channel.", complete=_places)
    ],
    pairs: Annotated[list[str] | None, Argument(metavar="KEY=VALUE", help="Settings to change.")] = None,
    unset: Annotated[
        list[str] | None, Option("--unset", metavar="KEY", help="Remove this setting, so that its default holds.")
    ] = None,
    everything: Annotated[bool, Option("--all", help="Show settings that have their default too.")] = False,
    flags: NodeFlags = NODES,
) -> None:
    """Show the settings of a topic or channel and where each comes from, or change them on every node.

    `lapwing docs failure` lists the settings. Without changes, only settings that differ from their default are shown.
    """
    topic, slash, channel = place.partition("/")
    if slash:
        topic, channel = administer.split_place(place)
    changes = parse_pairs(pairs or ())
    for key in unset or ():
        if changes.get(key) is not None:
            raise UsageError(f"{key} is set and unset: leave one out")
        changes[key] = None

    results = administer.carry_out(
        flags,
        lambda admin: admin.change_settings(topic, channel, **changes) if changes else admin.settings(topic, channel),
    )
    if changes or flags.as_json:
        administer.report(results, lambda answer: f"set: {_shown(answer, changes)}", as_json=flags.as_json)
        return
    for result in results:
        print(f"{result.node}:" if result.done else f"{result.node}: refused: {administer.explained(result.error)}")
        for name, found in result.answer.settings.items() if result.answer else ():
            if everything or found.source != "default":
                print(f"  {name:<24} {json.dumps(found.value):<16} {found.source}")
    administer.end_with(results)


def parse_pairs(pairs: Sequence[str]) -> dict[str, Any]:
    """Return the settings of `key=value` words; a value is JSON where it can be, else text. Raises `UsageError`."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not key or not equals:
            raise UsageError(f"{pair}: expected KEY=VALUE, such as max_attempts=5")
        if key in found:
            raise UsageError(f"{key} is given twice: leave one out")
        try:
            found[key] = json.loads(text)
        except ValueError:
            found[key] = text
    return found


def _shown(answer: "Settings", changes: dict[str, Any]) -> str:
    return ", ".join(f"{key}={json.dumps(answer.settings[key].value)}" for key in changes if key in answer.settings)
