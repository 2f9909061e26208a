"""lapwing pending: list messages that are in flight or wait to be delivered again, and take them."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from lapwing.cli import administer, shared
from lapwing.cli.administer import CHANGE, NODES, ChangeFlags, NodeFlags, Place
from lapwing.cli.commands import Argument, Group, Option, UsageError
from lapwing.client.format import SECOND, messages, parse_span, printable_text
from lapwing.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lapwing.client.admin_results import Results

app = Group(
    "pending",
    """List messages that are in flight or wait to be delivered again, and take them from their consumers.

    A message is in flight with a consumer, ready to be delivered again, or deferred until a time.""",
    example="lapwing pending list orders/billing --min-idle 1m",
)

_STATES: Final = ("in_flight", "ready", "deferred")
_NAMED: Final = 10  # messages that could not be taken and are named one by one
_NOT_HERE: Final = frozenset({"an id of another node", "no message with this id waits here"})
# nsqd's reasons; if every node gives one, nobody has the message

Ids = Annotated[
    list[str] | None, Argument(metavar="ID", help="The messages; without ids, those that the options describe.")
]
OnlyIds = Annotated[list[str] | None, Argument(metavar="ID", help="The messages; without ids, all of them.")]
Limit = Annotated[int, Option(min=0, help="At most this many messages of each node; 0: all of them.")]


@dataclass(frozen=True, slots=True)
class PendingFlags:
    """The selection of messages."""

    state: Annotated[str, Option(choices=_STATES, help="Only messages in this state.")] = ""
    holder: Annotated[str | None, Option(metavar="CONSUMER", help="Only messages that this consumer has.")] = None
    min_idle: Annotated[
        str | None, Option(metavar="DURATION", help="Only messages that a consumer has had for this long: 30s, 10m.")
    ] = None

    def members(self) -> dict[str, Any]:
        """Return the conditions as `Admin` takes them. Raises `UsageError`."""
        for flag, given in (("--holder", self.holder), ("--min-idle", self.min_idle)):
            if given == "":  # an empty shell variable must not mean all messages
                raise UsageError(f"{flag} is empty: give a value, or leave it out")
        try:
            idle = parse_span(self.min_idle) / SECOND if self.min_idle else 0
        except ConfigError as error:
            raise UsageError(f"--min-idle: {error}") from error
        found = {"state": self.state, "holder": self.holder, "min_idle": idle}
        return {key: value for key, value in found.items() if value}


_WHICH = PendingFlags()


@app.command("list", example="lapwing pending list orders/billing --state deferred")
def list_(
    place: Place,
    count: Annotated[int, Option("--count", "-n", min=1, help="List at most this many messages of each node.")] = 100,
    after: Annotated[int, Option(min=-1, help="Begin behind this sequence.")] = -1,
    bodies: Annotated[bool, Option("--bodies", help="Show the bodies too.")] = False,
    which: PendingFlags = _WHICH,
    flags: NodeFlags = NODES,
) -> None:
    """List pending messages in the order of the log: who has each, for how long, and how often it failed."""
    topic, channel = administer.split_place(place)
    chosen = which.members()
    results = administer.carry_out(
        flags, lambda admin: admin.pending(topic, channel, **chosen, count=count, after=after, bodies=bodies)
    )
    if flags.as_json:
        administer.report(results, "", as_json=True)
        return
    _print_entries(
        [(node, entry.document) for node, found in results.answers.items() for entry in found.entries], bodies=bodies
    )
    for node, found in results.answers.items():
        counts = (f"{found.counts[state]:,} {state.replace('_', ' ')}" for state in _STATES)
        shared.warn(f"{node}: {', '.join(counts)}")
    administer.end_quietly(results)


@app.command(example="lapwing pending claim orders/billing --min-idle 10m")
def claim(
    place: Place,
    ids: Ids = None,
    to: Annotated[str, Option(metavar="CONSUMER", help="Hand the messages to this consumer.")] = "",
    limit: Limit = 0,
    which: PendingFlags = _WHICH,
    flags: ChangeFlags = CHANGE,
) -> None:
    """Take messages from their consumers, or from their delay, so that others get them at once.

    A late answer of the former consumer is refused. It does not count as a failure.
    """
    _claim({"action": "ready", "to": to}, "make {} ready to be delivered", place, ids, which, limit, flags)


@app.command(example="lapwing pending finish orders/billing 0f1a2b3c4d5e6f70")
def finish(
    place: Place,
    ids: Ids = None,
    limit: Limit = 0,
    which: PendingFlags = _WHICH,
    flags: ChangeFlags = CHANGE,
) -> None:
    """Finish messages, so that they are not delivered any more."""
    _claim({"action": "finish"}, "finish {}", place, ids, which, limit, flags)


@app.command(example="lapwing pending reject orders/billing --holder worker-3 --reason 'wrong schema'")
def reject(
    place: Place,
    ids: Ids = None,
    reason: Annotated[str, Option(metavar="TEXT", help="The error that the dead letter gets.")] = "",
    limit: Limit = 0,
    which: PendingFlags = _WHICH,
    flags: ChangeFlags = CHANGE,
) -> None:
    """Give messages up at once: they become dead letters, or are dropped if the channel keeps none."""
    _claim({"action": "reject", "reason": reason}, "give up {}", place, ids, which, limit, flags)


@app.command(example="lapwing pending defer orders/billing --state ready --by 30m")
def defer(
    place: Place,
    ids: Ids = None,
    by: Annotated[str, Option(metavar="DURATION", help="The delay, from now: 30s, 10m, 2h.")] = "",
    limit: Limit = 0,
    which: PendingFlags = _WHICH,
    flags: ChangeFlags = CHANGE,
) -> None:
    """Take messages from their consumers, and deliver them after a delay."""
    if not by:
        raise UsageError("--by is missing: the delay, such as --by 30m")
    action = {"action": "defer", "delay": parse_span(by, "--by") / SECOND}
    _claim(action, f"defer {{}} by {by}", place, ids, which, limit, flags)


@app.command(example="lapwing pending cancel orders/billing --dry-run")
def cancel(
    place: Place,
    ids: OnlyIds = None,
    message_ids: Annotated[
        list[str] | None,
        Option("--message-id", metavar="TEXT", help="Messages with this header message-id, also if not deferred."),
    ] = None,
    limit: Limit = 0,
    flags: ChangeFlags = CHANGE,
) -> None:
    """Cancel deferred messages, so that they are never delivered. Messages in another state are left alone.

    By --message-id, which may be given several times, messages that wait for a consumer are cancelled too.
    """
    if message_ids:
        if ids or limit:
            raise UsageError("--message-id names the messages: leave out ids and --limit")
        _cancel(place, message_ids, flags)
        return
    _claim({"action": "finish"}, "cancel {}", place, ids, PendingFlags(state="deferred"), limit, flags)


# ---- what they share ----


def _claim(
    action: Mapping[str, Any], what: str, place: str, ids: list[str] | None, which: PendingFlags, limit: int,
    flags: ChangeFlags,
) -> None:  # fmt: skip
    """Count the messages of each node, ask, and claim them."""
    members = which.members()
    if not ids and not members:
        raise UsageError("which messages: give ids, --state, --holder or --min-idle")
    wanted = set(ids or ())
    for each in wanted:
        _check_id(each)
    topic, channel = administer.split_place(place)

    confirmed, shown = _steps(what, place, lambda answer: answer.claimed, flags)
    results = administer.carry_out(
        flags,
        lambda admin: admin.claim(topic, channel, **action, ids=wanted, **members, limit=limit, dry_run=flags.dry_run,
                                  confirm=confirmed),
    )  # fmt: skip
    administer.report(results, shown, as_json=flags.as_json)
    taken = {each for answer in results.answers.values() for each in answer.ids}
    _warn_of_others(wanted - taken, [answer.refused for answer in results.answers.values()])


def _steps(
    what: str, place: str, counted: "Callable[[Any], int]", flags: ChangeFlags
) -> "tuple[Callable[[Results[Any]], bool], Callable[[Any], str]]":
    """Return the question about what each node would do, and the text of what it has done."""

    def confirmed(plan: "Results[Any]") -> bool:
        if total := sum(map(counted, plan.answers.values())):
            lines = administer.plan_lines(plan, lambda each: messages(counted(each)))
            question = f"This will {what.format(messages(total))} of {place}:\n{lines}\nContinue?"
            administer.confirm(question, yes=flags.yes)
        return True

    def shown(answer: Any) -> str:
        done = what.format(messages(counted(answer)))
        if answer.dry_run:
            return f"would {done}"
        return f"done: {done}" if counted(answer) else "nothing to do"

    return confirmed, shown


def _cancel(place: str, message_ids: list[str], flags: ChangeFlags) -> None:
    """Ask, and cancel messages by the ids that their publishers gave them."""
    if not all(message_ids):  # an empty shell variable
        raise UsageError("--message-id is empty: give a value, or leave it out")
    topic, channel = administer.split_place(place)

    confirmed, shown = _steps("cancel {}", place, lambda answer: answer.cancelled, flags)
    results = administer.carry_out(
        flags, lambda admin: admin.cancel(topic, channel, message_ids, dry_run=flags.dry_run, confirm=confirmed)
    )
    administer.report(results, shown, as_json=flags.as_json)
    answers = results.answers.values()
    taken = {each for answer in answers for each in answer.message_ids}
    _warn_of_others(set(message_ids) - taken, [answer.refused for answer in answers])


def _check_id(text: str) -> None:
    from lapwing import ids

    try:
        ids.decode(text.encode("utf-8", "replace"))
    except ValueError:
        raise UsageError(
            f"{text!r} is no id of a message: 16 digits from 0 to f expected, as `lapwing pending list` shows them"
        ) from None


def _warn_of_others(wanted: set[str], refused: list[Mapping[str, str]]) -> None:
    """Name the messages that no node took, with the reason; exits with 1 if there are any."""
    reasons: dict[str, str] = {}
    for answer in refused:
        for each, reason in answer.items():
            if reason not in _NOT_HERE or each not in reasons:
                reasons[each] = reason
    left = sorted((each, reasons[each]) for each in wanted if each in reasons)
    for each, reason in left[:_NAMED]:
        shared.warn(f"{each} was left alone: {reason}")
    if len(left) > _NAMED:
        shared.warn(f"{len(left) - _NAMED:,} more messages were left alone; --json names each with its reason")
    if left:
        sys.exit(1)


def _print_entries(entries: list[tuple[str, Any]], *, bodies: bool) -> None:
    import time

    from lapwing.tools.screens import pending_table
    from lapwing.tools.terminal import Terminal

    if not entries:
        return
    if not bodies:
        print("\n".join(pending_table(entries, Terminal.of(sys.stdout), now=time.time())))
        return
    heading, *lines = pending_table(entries, Terminal(), now=time.time())
    print(heading)
    for line, (_, entry) in zip(lines, entries, strict=True):
        print(line)
        print(printable_text(_body(entry)), end="\n\n")


def _body(entry: Any) -> str:
    if "body" not in entry:
        return "the body cannot be read"
    return str(entry["body"]) if entry["body"] is not None else f"base64: {entry['body_base64']}"
