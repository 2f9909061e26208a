"""lapwing log: look into the logs of a data path that no nsqd uses."""

import base64
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any, BinaryIO

from lapwing.cli.commands import Argument, Group, Option
from lapwing.cli.shared import Json
from lapwing.errors import ConfigError, LogError, NoSuchTopic
from lapwing.log.catalog import FILE
from lapwing.log.datapath import TOPICS, DataPath
from lapwing.log.offline import offline
from lapwing.log.options import boot_number
from lapwing.net.machine import boot_id

app = Group(
    "log",
    "Look into the logs of a data path; the nsqd that uses it must be stopped.\n\n"
    "Exit codes: 0 no problem, 1 problems were found, 2 the command line is wrong.",
    example="lapwing log verify /var/lib/nsqd --topic orders",
)

DataPathArgument = Annotated[str, Argument(metavar="DATA_PATH", help="The directory given to nsqd as --data-path.")]
Topics = Annotated[list[str] | None, Option("--topic", metavar="TOPIC", help="Only this topic.")]


@app.command(example="lapwing log verify /var/lib/nsqd --json | jq .problems")
def verify(place: DataPathArgument, topic: Topics = None, as_json: Json = False) -> None:
    """Compare everything with its checksums, and change nothing. Exit code 1 if something is wrong."""
    summaries: list[offline.Summary] = []
    problems: list[offline.Problem] = []
    with held_data_path(place) as held, _shown(offline.verify(held, topic or (), boot=boot()), as_json) as events:
        for event in events:
            if isinstance(event, offline.Problem):
                problems.append(event)
                if not as_json:
                    print(f"{event.topic or 'catalog'}: {event.path}: offset {event.offset}: {event.what}")
            elif isinstance(event, offline.Summary):
                summaries.append(event)
                if not as_json:
                    print(_line(event))
    if as_json:
        found = {"problems": [asdict(each) for each in problems], "topics": [asdict(each) for each in summaries]}
        print(json.dumps({"ok": not problems, **found}, indent=2))
    elif not problems:
        print("no problem found")
    if problems:
        sys.exit(1)


@app.command(example="lapwing log repair /var/lib/nsqd")
def repair(
    place: DataPathArgument,
    topic: Topics = None,
    unreadable: Annotated[
        bool, Option(help="Also give up chunks that the disk does not return (default: leave them as they are).")
    ] = False,
    unverified: Annotated[
        bool, Option(help="Also serve messages that no checksum covers (default: they stay set aside).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Repair a data path. Damaged chunks are copied to DATA_PATH/quarantine and set aside; the rest is kept.

    Exit code 1 if something could not be repaired.
    """
    repairs: list[offline.Repair] = []
    with held_data_path(place) as held:
        found = offline.repair(held, topic or (), unreadable=unreadable, unverified=unverified, boot=boot())
        with _shown(found, as_json) as events:
            for event in events:
                if isinstance(event, offline.Repair):
                    repairs.append(event)
                    if not as_json:
                        print(f"{event.topic or 'catalog'}: {event.what}")
    ok = all(one.done for one in repairs)
    if as_json:
        print(json.dumps({"ok": ok, "repairs": [asdict(one) for one in repairs]}, indent=2))
    elif not repairs:
        print("nothing to repair")
    if not ok:
        sys.exit(1)


@app.command(example="lapwing log export /var/lib/nsqd --topic orders --json --output orders.jsonl")
def export(
    place: DataPathArgument,
    topic: Topics = None,
    as_json: Annotated[bool, Option("--json", help="One JSON object a message, with all it has.")] = False,
    output: Annotated[str, Option(help="Write to this file instead of to the terminal.")] = "",
    start: Annotated[int, Option("--from", min=0, help="Begin at this sequence.")] = 0,
    stop: Annotated[int | None, Option("--to", min=0, help="End before this.")] = None,
    unverified: Annotated[
        bool, Option(help="Also messages that no checksum covers (default: without them).")
    ] = False,
) -> None:
    """Export messages: one body per line, or JSON. Exit code 1 if some could not be read."""
    problems = 0
    with held_data_path(place) as held, _destination(output) as out:
        end = 1 << 62 if stop is None else stop
        found = offline.export(held, topic or (), start=start, stop=end, boot=boot(), unverified=unverified)
        with _shown(found, quiet=not output) as events:
            for event in events:
                if isinstance(event, offline.Block):
                    for message in offline.messages(event):
                        out.write(_json_line(message) if as_json else message["body"] + b"\n")
                elif isinstance(event, offline.Problem):
                    problems += 1
                    print(f"{event.topic}: {event.path}: offset {event.offset}: {event.what}", file=sys.stderr)
    if problems:
        sys.exit(1)


def boot() -> int:
    """Return the number of this run of the machine, as index records have it."""
    return boot_number(boot_id())


@contextmanager
def held_data_path(path: str) -> Iterator[DataPath]:
    """Lock the data path. Raises `ConfigError` if it cannot be used."""
    if not os.path.isdir(path):
        raise ConfigError(f"{path}: no such directory")
    if not any(os.path.exists(os.path.join(path, name)) for name in (FILE, TOPICS)):
        raise ConfigError(f"{path}: no data path of nsqd: there is neither {FILE} nor {TOPICS} in it")
    try:
        held = DataPath(path)
    except LogError as error:
        raise ConfigError(f"{error}; stop it first") from error
    try:
        yield held
    except NoSuchTopic as error:
        raise ConfigError(str(error)) from error
    finally:
        held.release()


@contextmanager
def _shown(events: Iterable[offline.Event], quiet: bool) -> Iterator[Iterator[offline.Event]]:
    """Yield the events without those of progress, which become a bar for each topic on a terminal."""
    from lapwing.client.format import size
    from lapwing.tools.terminal import progress_bars

    with progress_bars(quiet=quiet, unit=size) as report:

        def passed() -> Iterator[offline.Event]:
            for event in events:
                if isinstance(event, offline.Progress):
                    report(event.topic, event.done, event.total)
                else:
                    yield event

        yield passed()


@contextmanager
def _destination(path: str) -> Iterator[BinaryIO]:
    if not path:
        try:
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            # whoever reads has seen enough; what is still buffered must not fail a second time at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    try:
        with open(path, "wb") as file:
            yield file
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error


def _line(summary: offline.Summary) -> str:
    segments = "1 segment" if summary.segments == 1 else f"{summary.segments} segments"
    held = f"{summary.messages} messages [{summary.first}, {summary.next}), {summary.bytes} bytes in {segments}"
    text = f"{summary.topic}: {held}"
    return text + (f", {summary.quarantined} set aside" if summary.quarantined else "")


def _json_line(message: dict[str, Any]) -> bytes:
    """Return a message as JSON; a body that is not UTF-8 is in base64."""
    body = message["body"]
    try:
        message["body"] = body.decode()
    except UnicodeDecodeError:
        message |= {"body": None, "body_base64": base64.b64encode(body).decode()}
    return json.dumps(message, ensure_ascii=False).encode() + b"\n"
