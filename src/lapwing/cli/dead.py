"""lapwing dead: look at dead letters, return them to their channels, and drop them."""

import math
import sys
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from lapwing.cli import administer, dead_targets, shared
from lapwing.cli.administer import CHANGE, NODES, ChangeFlags, NodeFlags
from lapwing.cli.commands import Argument, Group, Option, UsageError
from lapwing.cli.dead_targets import Dead, DeadNode, LetterFlags
from lapwing.client.format import messages, moment, ordinal, printable_text, several
from lapwing.errors import LapwingError

if TYPE_CHECKING:
    from lapwing.client.cluster_changes import NodeResult

app = Group(
    "dead",
    """Look at dead letters, return them to the channels that gave them up, or drop them, on every node.

    docs/failure.md explains when a message becomes a dead letter.""",
    example="lapwing dead redrive orders/billing --reason attempts --rate 100/s --wait",
)

Results: TypeAlias = "list[NodeResult[Any]]"
_LETTERS = LetterFlags()
_EVERY: Final = 0.25  # s between two looks at the progress
_SOON: Final = 1.0  # s: a few letters are dealt with in less, and the command can report the outcome
_PAGE: Final = 1000  # letters of one answer

Limit = Annotated[int, Option(min=0, help="At most so many letters, over all nodes; 0: all of them.")]
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
    params = dead_targets.parameters(letters.filter(name))
    results = dead_targets.on_each(flags, name, lambda at: at.get("/dead/groups", **params))
    if flags.as_json:
        administer.report(results, "", as_json=True)
        return
    rows = [
        (result.node, f"{group['letters']:,}", f"{group['topic']}/{group['channel']}", group["reason"],
         moment(group["last"] or "", now=time.time()),
         printable_text(group["error"]))
        for result in results for group in (result.answer or {}).get("groups", ())
    ]  # fmt: skip
    others = sum((result.answer or {}).get("others", 0) for result in results)
    administer.print_table(("node", "letters", "channel", "reason", "last", "error"), rows, numbers=("letters",))
    if others:
        print(f"{others:,} letters more have other errors")
    administer.end_quietly(results, "no dead letters" if not rows else "")


def _list_topics(flags: NodeFlags) -> None:
    results = administer.on_all(flags, lambda http, at: http.get(at, "/dead"))
    if flags.as_json:
        administer.report(results, "", as_json=True)
        return
    rows = [
        (result.node, each["topic"], f"{each['letters']:,}", _progress(each["redrive"]) if each["redrive"] else "")
        for result in results for each in (result.answer or {}).get("topics", ())
    ]  # fmt: skip
    administer.print_table(("node", "topic", "letters", "redrive"), rows, numbers=("letters",))
    administer.end_quietly(results, "no dead letters" if not rows else "")


@app.command(example="lapwing dead show orders/billing --error KeyError --count 3")
def show(
    name: Dead,
    count: Annotated[int, Option("--count", "-n", min=1, help="Show at most so many letters of each node.")] = 10,
    after: Annotated[int, Option(min=-1, help="Begin behind this sequence.")] = -1,
    bodies: Annotated[bool, Option("--bodies/--no-bodies", help="Show the bodies.")] = True,
    letters: LetterFlags = _LETTERS,
    flags: NodeFlags = NODES,
) -> None:
    """Show dead letters, the oldest first: where each comes from, why it was given up, its error and its body."""
    params = dead_targets.parameters(letters.filter(name)) | {"body": "true" if bodies else "false"}

    async def read(at: DeadNode) -> list[Any]:
        found: list[Any] = []
        place = {"after": str(after)} if after >= 0 else {}
        while len(found) < count:
            limit = str(min(count - len(found), _PAGE))
            answer = await at.get("/dead/letters", **params, **place, limit=limit)
            found += answer["letters"]
            if answer["next"] is None:
                break
            place = {"after": str(answer["next"])}
        return found

    results = dead_targets.on_each(flags, name, read, one=bool(letters.sequence))
    if flags.as_json:
        administer.report(results, "", as_json=True)
        return
    for result in results:
        for letter in result.answer or ():
            print("\n".join(_letter_lines(result.node, letter, now=time.time())), end="\n\n")
    administer.end_quietly(results, "" if any(result.answer for result in results) else "no dead letters match")


@app.command(example="lapwing dead redrive orders/billing --reason attempts --rate 100/s --wait")
def redrive(
    name: Dead,
    to: Annotated[
        str,
        Option(choices=("channel", "topic"),
               help="channel: the one that gave a letter up; topic: publish it again, for every channel."),
    ] = "channel",
    rate: Annotated[str, Option(help="At most so many letters on each node: 100/s, 5/m.")] = "",
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
    document = {"to": to, **({"rate": rate} if rate else {}), **({"body": body} if body else {})}
    where = "the channels that gave them up" if to == "channel" else "their topics, for every channel"
    _carry_out(
        "/dead/redrive", document, name, letters, limit, f"return {{}} of {name} to {where}", wait=wait, flags=flags,
    )  # fmt: skip


@app.command(example="lapwing dead purge orders/billing --until 720h --dry-run")
def purge(
    name: Dead,
    limit: Limit = 0,
    wait: Wait = False,
    letters: LetterFlags = _LETTERS,
    flags: ChangeFlags = CHANGE,
) -> None:
    """Drop dead letters for good. The letters are counted first."""
    _carry_out(
        "/dead/purge", {}, name, letters, limit, f"drop {{}} of {name} for good", wait=wait, flags=flags,
    )  # fmt: skip


@app.command(example="lapwing dead status orders/billing --wait")
def status(name: Dead, wait: Wait = False, flags: NodeFlags = NODES) -> None:
    """Show the redrive of each node: the one that runs, or the last one."""
    _report_tasks(_tasks(name, flags, wait=math.inf if wait else 0.0), flags)


@app.command(example="lapwing dead cancel orders/billing")
def cancel(name: Dead, flags: NodeFlags = NODES) -> None:
    """End a redrive or a purge where it is. Letters that it has not dealt with stay dead letters."""
    _report_tasks(dead_targets.on_each(flags, name, lambda at: at.post("/dead/cancel")), flags)


# ---- what they share ----


def _carry_out(
    path: str, document: dict[str, Any], name: str, letters: LetterFlags, limit: int, what: str, *, wait: bool,
    flags: ChangeFlags,
) -> None:  # fmt: skip
    """Count the letters on each node, ask, and begin."""
    document = {**document, "filter": letters.filter(name)}
    one = bool(letters.sequence)
    preview = {**document, "limit": limit, "dry_run": True}
    planned = dead_targets.on_each(flags, name, lambda at: at.post(path, preview), one=one)
    shares = _shares(planned, limit)
    if flags.dry_run or not all(result.done for result in planned):
        administer.report(
            planned, lambda answer: "\n".join([f"would {what.format(_letters(answer['letters']))}", *_sample(answer)]),
            as_json=flags.as_json,
        )  # fmt: skip
        return
    if not any(shares.values()):
        if flags.as_json:
            administer.report([], "", as_json=True)
        shared.warn("no dead letters match: nothing to do")
        administer.end_with(planned)
        return
    plan = "\n".join(f"  {at}: {_letters(count)}" for at, count in shares.items())
    administer.confirm(f"This will {what.format(_letters(sum(shares.values())))}:\n{plan}\nContinue?", yes=flags.yes)

    async def begin(at: DeadNode) -> Any:
        share = shares.get(at.node.name, 0)
        if not share:
            return {"state": "done", "redriven": 0, "skipped": {}, "left": 0, "error": ""}
        return await at.post(path, {**document, "limit": share if limit else 0})

    results = dead_targets.on_each(flags, name, begin, one=one)
    if waiting := {result.node for result in results if result.answer and result.answer["state"] == "running"}:
        ended = {result.node: result for result in _tasks(name, flags, wait=math.inf if wait else _SOON, only=waiting)}
        results[:] = [ended.get(result.node, result) for result in results]
    _report_tasks(results, flags)


def _shares(planned: Results, limit: int) -> dict[str, int]:
    """Return how many letters each node deals with, so that `limit` holds over all of them."""
    shares: dict[str, int] = {}
    left = limit
    for result in planned:
        count = int((result.answer or {}).get("letters", 0))
        shares[result.node] = min(count, left) if limit else count
        left -= shares[result.node]
    return shares


def _tasks(name: str, flags: NodeFlags, *, wait: float, only: Collection[str] | None = None) -> Results:
    """Return the task of each node, or of those named, once it does not run any more or after `wait` seconds."""
    import asyncio

    async def ask(at: DeadNode) -> Any:
        until = time.monotonic() + wait
        task = await at.get("/dead/redrive")
        while task["state"] == "running" and time.monotonic() < until:
            _show_progress(f"{at.node.name}  {_progress(task)}")
            await asyncio.sleep(_EVERY)
            task = await at.get("/dead/redrive")
        _show_progress("")
        return task

    return dead_targets.on_each(flags, name, ask, only=only)


def _show_progress(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


def _report_tasks(results: Results, flags: NodeFlags) -> None:
    if not results and not flags.as_json:
        raise LapwingError("no dead letters there; `lapwing dead list` shows where there are some")
    administer.report(results, _progress, as_json=flags.as_json)
    if any(result.answer["state"] == "failed" for result in results if result.answer):
        sys.exit(1)


def _progress(task: Any) -> str:
    done = f"{task['state']}: {_letters(task['redriven'])} {'dropped' if task.get('to') == 'nowhere' else 'returned'}"
    left = f", {messages(task['left'])} of the topic left to look at" if task["state"] == "running" else ""
    skipped = "".join(f"; {count:,} skipped: {why}" for why, count in task["skipped"].items())
    return done + left + skipped + (f"; {task['error']}" if task["error"] else "")


def _letters(count: int) -> str:
    return several(count, "dead letter")


def _sample(answer: Any) -> list[str]:
    lines = []
    for each in answer["sample"]:
        error = printable_text(str(each["error"] or "").partition("\n")[0][:100])
        lines.append(f"  {each['sequence']:>8}  {each['topic']}/{each['channel']}  {each['reason']}  {error}".rstrip())
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
