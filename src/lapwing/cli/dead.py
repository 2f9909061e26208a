"""lapwing dead: look at dead letters, return them to their channels, and drop them."""

import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

from lapwing.cli import administer, dead_targets, shared
from lapwing.cli.administer import CHANGE, NODES, ChangeFlags, NodeFlags
from lapwing.cli.commands import Argument, Group, Option, UsageError
from lapwing.cli.dead_targets import Dead, LetterFlags
from lapwing.client.format import ago, messages, moment, ordinal, printable_text, several
from lapwing.errors import LapwingError
from lapwing.tools.terminal import Terminal

if TYPE_CHECKING:
    from lapwing.client.admin import Admin, LetterFilter
    from lapwing.client.admin_results import Redrive, Results

app = Group(
    "dead",
    """Look at dead letters, return them to the channels that gave them up, or drop them, on every node.

    `lapwing docs failure` explains when a message becomes a dead letter.""",
    example="lapwing dead redrive orders/billing --reason attempts --rate 100/s --wait",
)

_LETTERS = LetterFlags()
_SOON: Final = 1.0  # s: a few letters are dealt with in less, and the command can report the outcome

Limit = Annotated[int, Option(min=0, help="At most this many letters, over all nodes; 0: all of them.")]
Wait = Annotated[bool, Option("--wait", help="Show the progress until it is done.")]


@app.command("list", example="lapwing dead list")
def list_(
    name: Annotated[
        str,
        Argument(metavar="DEAD", complete=dead_targets.known_dead,
                 help="Count the letters of this dead-letter topic or TOPIC/CHANNEL by channel, reason and error."),
    ] = "",
    letters: LetterFlags = _LETTERS,
    flags: NodeFlags = NODES,
) -> None:  # fmt: skip
    """List the dead-letter topics of every node; or, of one of them, how many letters there are and why."""
    if not name:
        if letters != _LETTERS:
            raise UsageError("DEAD is missing: the dead-letter topic or TOPIC/CHANNEL whose letters are meant")
        _list_topics(flags)
        return
    chosen = letters.chosen(name)
    results = dead_targets.carry_out(flags, lambda admin: admin.dead_groups(name, chosen))
    if flags.as_json:
        administer.report(results, "", as_json=True)
        return
    rows = [
        (node, f"{group.letters:,}", f"{group.topic}/{group.channel}", group.reason,
         ago(group.last, now=time.time()), printable_text(group.error))
        for node, found in results.answers.items() for group in found.groups
    ]  # fmt: skip
    others = sum(found.others for found in results.answers.values())
    administer.print_table(("node", "letters", "channel", "reason", "last", "error"), rows, numbers=("letters",))
    if others:
        print(f"{others:,} letters more have other errors")
    administer.end_quietly(results, "no dead letters" if not rows else "")


def _list_topics(flags: NodeFlags) -> None:
    results = administer.carry_out(flags, lambda admin: admin.dead_topics())
    if flags.as_json:
        administer.report(results, "", as_json=True)
        return
    rows = [
        (node, each.topic, f"{each.letters:,}", _progress(each.redrive) if each.redrive else "")
        for node, found in results.answers.items() for each in found.topics
    ]  # fmt: skip
    administer.print_table(("node", "topic", "letters", "redrive"), rows, numbers=("letters",))
    administer.end_quietly(results, "no dead letters" if not rows else "")


@app.command(example="lapwing dead show orders/billing --error KeyError --count 3")
def show(
    name: Dead,
    count: Annotated[int, Option("--count", "-n", min=1, help="Show at most this many letters of each node.")] = 10,
    after: Annotated[int, Option(min=-1, help="Begin behind this sequence.")] = -1,
    bodies: Annotated[bool, Option("--bodies/--no-bodies", help="Show the bodies.")] = True,
    letters: LetterFlags = _LETTERS,
    flags: NodeFlags = NODES,
) -> None:
    """Show dead letters, the oldest first: where each comes from, why it was given up, its error and its body."""
    chosen = letters.chosen(name)
    results = dead_targets.carry_out(
        flags, lambda admin: admin.dead_letters(name, chosen, count=count, after=after, bodies=bodies)
    )
    if flags.as_json:
        administer.report(results, "", as_json=True)
        return
    found = [(node, letter.document) for node, each in results.answers.items() for letter in each.letters]
    for node, letter in found:
        print("\n".join(_letter_lines(node, letter, now=time.time())), end="\n\n")
    administer.end_quietly(results, "" if found else "no dead letters match")


@app.command(example="lapwing dead redrive orders/billing --reason attempts --rate 100/s --wait")
def redrive(
    name: Dead,
    to: Annotated[
        str,
        Option(choices=("channel", "topic"),
               help="channel: the one that gave a letter up; topic: publish it again, for every channel."),
    ] = "channel",
    rate: Annotated[str, Option(help="At most this many letters a second or minute on each node: 100/s, 5/m.")] = "",
    limit: Limit = 0,
    body: Annotated[str, Option(help="Replace the body of the one letter that --sequence names.")] = "",
    wait: Wait = False,
    letters: LetterFlags = _LETTERS,
    flags: ChangeFlags = CHANGE,
) -> None:  # fmt: skip
    """Return dead letters to the channels that gave them up, and to no other. The letters are counted first.

    It continues after this command has ended: `lapwing dead status` shows how far it is, `lapwing dead cancel` ends it.
    """
    if body and len(letters.sequence or ()) != 1:
        raise UsageError("--body: give --sequence to name the one letter whose body it replaces")
    where = "the channels that gave them up" if to == "channel" else "their topics, for every channel"

    def work(admin: "Admin", chosen: "LetterFilter", **asked: Any) -> "Awaitable[Results[Redrive]]":
        return admin.redrive(name, chosen, to=to, rate=rate, limit=limit, body=body, **asked)

    _deal(work, f"return {{}} of {name} to {where}", name, letters, wait=wait, flags=flags)


@app.command(example="lapwing dead purge orders/billing --until 720h --dry-run")
def purge(
    name: Dead,
    limit: Limit = 0,
    wait: Wait = False,
    letters: LetterFlags = _LETTERS,
    flags: ChangeFlags = CHANGE,
) -> None:
    """Drop dead letters for good. The letters are counted first."""

    def work(admin: "Admin", chosen: "LetterFilter", **asked: Any) -> "Awaitable[Results[Redrive]]":
        return admin.purge(name, chosen, limit=limit, **asked)

    _deal(work, f"drop {{}} of {name} for good", name, letters, wait=wait, flags=flags)


@app.command(example="lapwing dead status orders/billing --wait")
def status(name: Dead, wait: Wait = False, flags: NodeFlags = NODES) -> None:
    """Show the redrive of each node: the one that runs, or the last one."""
    with _progress_line() as progress:
        results = dead_targets.carry_out(
            flags, lambda admin: admin.redrive_status(name, wait=None if wait else 0.0, progress=progress)
        )
    _report_tasks(results, flags)


@app.command(example="lapwing dead cancel orders/billing")
def cancel(name: Dead, flags: NodeFlags = NODES) -> None:
    """End a redrive or a purge where it is. Letters that it has not dealt with stay dead letters."""
    _report_tasks(dead_targets.carry_out(flags, lambda admin: admin.cancel_redrive(name)), flags)


# ---- what they share ----


def _deal(
    work: "Callable[..., Awaitable[Results[Redrive]]]", what: str, name: str, letters: LetterFlags, *, wait: bool,
    flags: ChangeFlags,
) -> None:  # fmt: skip
    """Count the letters on each node, ask, and begin."""
    chosen = letters.chosen(name)

    def confirmed(plan: "Results[Redrive]") -> bool:
        total = sum(each.letters for each in plan.answers.values())
        if total:
            lines = administer.plan_lines(plan, lambda each: _letters(each.letters))
            administer.confirm(f"This will {what.format(_letters(total))}:\n{lines}\nContinue?", yes=flags.yes)
        return total > 0

    with _progress_line() as progress:
        results = dead_targets.carry_out(
            flags,
            lambda admin: work(admin, chosen, dry_run=flags.dry_run, confirm=confirmed, wait=None if wait else _SOON,
                               progress=progress),
        )  # fmt: skip
    planned = [each for each in results.answers.values() if each.state == "planned"]
    if planned and not flags.dry_run and not any(each.letters for each in planned):
        if flags.as_json:
            print("[]")
        shared.warn("no dead letters match: nothing to do")
        administer.end_with(results)
        return
    if planned or flags.dry_run:
        administer.report(
            results, lambda plan: "\n".join([f"would {what.format(_letters(plan.letters))}", *_sample(plan)]),
            as_json=flags.as_json,
        )  # fmt: skip
        return
    _report_tasks(results, flags)


@contextmanager
def _progress_line() -> "Iterator[Callable[[str, Redrive], None] | None]":
    """Yield a function that shows how far all nodes are in one line, if stderr is a terminal. It goes at the end."""
    terminal = Terminal.of(sys.stderr)
    if not terminal.redraws:
        yield None
        return
    far: dict[str, Redrive] = {}

    def show(node: str, task: "Redrive") -> None:
        far[node] = task
        done, left = sum(each.redriven for each in far.values()), sum(each.left for each in far.values())
        line = f"{_letters(done)} dealt with, {messages(left)} left to look at on {several(len(far), 'node')}"
        print(f"\r\x1b[K{terminal.cut(line)}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if far:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _report_tasks(results: "Results[Redrive]", flags: NodeFlags) -> None:
    if not results and not flags.as_json:
        raise LapwingError("no dead letters there; `lapwing dead list` shows where there are some")
    administer.report(results, _progress, as_json=flags.as_json)
    if any(task.state == "failed" for task in results.answers.values()):
        sys.exit(1)


def _progress(task: "Redrive") -> str:
    done = f"{task.state}: {_letters(task.redriven)} {'dropped' if task.to == 'nowhere' else 'returned'}"
    left = f", {messages(task.left)} of the topic left to look at" if task.state == "running" else ""
    skipped = "".join(f"; {count:,} skipped: {why}" for why, count in task.skipped.items())
    return done + left + skipped + (f"; {task.error}" if task.error else "")


def _letters(count: int) -> str:
    return several(count, "dead letter")


def _sample(plan: "Redrive") -> list[str]:
    lines = []
    for each in plan.sample:
        error = printable_text((each.error or "").partition("\n")[0][:100])
        lines.append(f"  {each.sequence:>8}  {each.topic}/{each.channel}  {each.reason}  {error}".rstrip())
    return lines


def _letter_lines(node: str, letter: Any, *, now: float) -> list[str]:
    """Return a letter for people; `now` is in Unix seconds."""
    again = f", for the {ordinal(letter['count'])} time" if letter["count"] > 1 else ""
    at, first, published = (moment(letter[name] or "", now=now) for name in ("at", "first_failed", "published"))
    heads = [
        ("from", f"{letter['topic']}/{letter['channel']} on {node}, message {letter['id']}" if letter["id"]
         else f"nowhere: it was published to this topic on {node}, and is no dead letter"),
        ("given up", f"{at}, {letter['reason']}{again}" if letter["id"] else ""),
        ("failed", f"{several(letter['failures'], 'time')}, deliveries {letter['deliveries']}, first {first}"
         if letter["failures"] else ""),
        ("published", published),
        ("consumer", letter["consumer"]),
        ("error", letter["error"]),
        ("headers", " ".join(f"{key}={value}" for key, value in letter["headers"].items())),
        ("held", "a consumer of the dead-letter topic has it" if letter["held"] else ""),
    ]  # fmt: skip
    lines = [f"letter {letter['sequence']}"]
    for head, text in heads:
        if text:
            first, *more = map(printable_text, str(text).split("\n"))
            lines += [f"  {head:<10} {first}", *(f"  {'':<10} {line}" for line in more)]
    if "body" in letter:
        text = letter["body"] if letter["body"] is not None else f"base64: {letter['body_base64']}"
        lines += map(printable_text, text.split("\n"))
    return lines
