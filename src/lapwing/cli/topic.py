"""lapwing topic: create, delete, pause, unpause and empty topics."""

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Annotated, Any

from lapwing.cli import administer, shared
from lapwing.cli.administer import CHANGE, NODES, ChangeFlags, NodeFlags
from lapwing.cli.commands import Argument, Group, Option

if TYPE_CHECKING:
    from lapwing.client.admin import Admin
    from lapwing.client.admin_results import Counts, Results

app = Group(
    "topic",
    """Create, delete, pause, unpause and empty topics, on every node that has the topic.

    A line for each node shows whether it took the change; the exit code is 1 if one refused.""",
    example="lapwing topic create orders",
)

NewTopic = Annotated[str, Argument(help="The topic.")]


@app.command(example="lapwing topic create orders")
def create(
    topic: NewTopic,
    channel: Annotated[list[str] | None, Option("--channel", help="Create this channel too.")] = None,
    flags: NodeFlags = NODES,
) -> None:
    """Create a topic on every node. A topic that exists is left as it is."""
    results = administer.carry_out(flags, lambda admin: admin.create(topic, *channel or ()))
    administer.report(results, "created", as_json=flags.as_json)


@app.command(example="lapwing topic delete orders --dry-run")
def delete(topic: shared.Topic, flags: ChangeFlags = CHANGE) -> None:
    """Delete a topic with its channels and all messages, on every node and in nsqlookupd."""
    destroy("delete", "deleted", topic, "", flags)


@app.command(example="lapwing topic empty orders --yes")
def empty(topic: shared.Topic, flags: ChangeFlags = CHANGE) -> None:
    """Drop the messages that wait in the topic and are not in a channel yet. Channels keep theirs."""
    destroy("empty", "emptied", topic, "", flags)


@app.command(example="lapwing topic pause orders")
def pause(topic: shared.Topic, flags: NodeFlags = NODES) -> None:
    """Stop handing messages to channels. Publishing continues; the messages wait in the topic."""
    act("pause", "paused", topic, "", flags)


@app.command(example="lapwing topic unpause orders")
def unpause(topic: shared.Topic, flags: NodeFlags = NODES) -> None:
    """Hand messages to channels again."""
    act("unpause", "unpaused", topic, "", flags)


def act(action: str, done: str, topic: str, channel: str, flags: NodeFlags) -> None:
    """Pause or unpause a topic, or a channel of it."""
    results = administer.carry_out(
        flags, lambda admin: admin.pause(topic, channel) if action == "pause" else admin.unpause(topic, channel)
    )
    administer.report(results, done, as_json=flags.as_json)


def destroy(action: str, done: str, topic: str, channel: str, flags: ChangeFlags) -> None:
    """Delete or empty a topic, or a channel of it, after asking."""
    name = f"channel {topic}/{channel}" if channel else f"topic {topic}"

    def held(counts: "Counts") -> str:
        if not counts.there:
            return "not there"
        if channel:
            return f"{counts.waiting:,} messages, {counts.in_flight:,} in flight, {counts.consumers} consumers"
        if action == "empty":
            return f"{counts.depth:,} messages"
        return f"{counts.waiting:,} messages waiting, {counts.channels} channels, {counts.consumers} consumers"

    def confirmed(plan: "Results[Counts]") -> bool:
        places = administer.plan_lines(plan, held) or "  no nsqd has it, only nsqlookupd knows it"
        administer.confirm(f"This will {action} {name}:\n{places}\nContinue?", yes=flags.yes)
        return True

    if flags.dry_run:
        counts = administer.carry_out(flags, lambda admin: admin.counts(topic, channel))
        administer.report(counts, lambda each: f"would {action} {name}: {held(each)}", as_json=flags.as_json)
        return

    def work(admin: "Admin") -> "Awaitable[Results[None]]":
        change = admin.delete if action == "delete" else admin.empty
        return change(topic, channel, confirm=confirmed)

    results: Results[Any] = administer.carry_out(flags, work)  # counts, if a node refuses to count
    if not results and not flags.as_json:
        shared.warn(f"{name} is {done} in nsqlookupd; no nsqd had it")
    administer.report(results, lambda each: done if each is None else held(each), as_json=flags.as_json)
