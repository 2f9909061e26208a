"""lapwing import-nsqd: bring the messages of NSQ's own nsqd into a data path."""

import json
import os
import sys
import time
from dataclasses import asdict
from typing import Annotated, Any, Final

from lapwing.cli.commands import Argument, Option, command
from lapwing.cli.shared import Json
from lapwing.errors import ConfigError, DataPathInUse, LogError

_NOTHING: Final = "no disk queue of NSQ holds messages"


@command(example="lapwing import-nsqd /var/lib/nsqd --data-path /var/lib/lapwing --dry-run")
def app(
    source: Annotated[str, Argument(metavar="NSQ_DATA_PATH", help="The data path of NSQ's nsqd, which is stopped.")],
    data_path: Annotated[
        str, Option(metavar="PATH", help="The data path of lapwing's nsqd, which is stopped (default: the same).")
    ] = "",
    topic: Annotated[list[str] | None, Option("--topic", metavar="TOPIC", help="Only this topic.")] = None,
    node_id: Annotated[int | None, Option(min=0, max=1023, help="The --node-id of nsqd (default: as nsqd).")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Only list the queues and how many messages they hold.")] = False,
    as_json: Json = False,
) -> None:
    """Import the disk queues that NSQ's own nsqd has left: every channel gets the messages that its queue held.

    Both servers must be stopped; NSQ's nsqd writes its memory to the queues when it is stopped cleanly. Topics,
    channels and pauses come along, and so do the times and attempts of messages. NSQ's files are moved to the folder
    nsq-imported. Exit code 1 when something could not be imported.
    """
    from lapwing.log.offline import import_nsq

    if not os.path.isdir(source):
        raise ConfigError(f"{source}: no such directory")
    if dry_run:
        queues = import_nsq.topics_with_queues(source)
        chosen = {name: found for name, found in queues.items() if not topic or name in topic}
        _list(chosen, as_json)
        if not chosen and not as_json:
            print(f"{source}: {_NOTHING}")
        return
    done = _run(source, data_path or source, topic or [], node_id, quiet=as_json)
    if as_json:
        print(json.dumps([asdict(one) for one in done], indent=2))
    elif not done:
        print(f"{source}: {_NOTHING}")
    if any(one.skipped or one.damage for one in done):
        sys.exit(1)


def _list(queues: dict[str, list[Any]], as_json: bool) -> None:
    if as_json:
        document = {name: {queue.name: queue.depth for queue in found} for name, found in queues.items()}
        print(json.dumps(document, indent=2))
    for found in () if as_json else queues.values():
        for queue in found:
            print(f"{queue.depth:>12,}  {queue.name}")


def _run(source: str, target: str, topics: list[str], node_id: int | None, *, quiet: bool) -> list[Any]:
    from lapwing.broker.settings.options import Options
    from lapwing.log.datapath import DataPath
    from lapwing.log.offline import import_nsq
    from lapwing.tools.terminal import progress_bars

    try:
        place = DataPath(target)
    except DataPathInUse as error:
        raise ConfigError(f"{error}; stop it first") from error
    except LogError as error:
        raise ConfigError(f"{error}; create the folder first, for the user that nsqd runs as") from error
    done = []
    try:
        node = Options().node_id if node_id is None else node_id
        events = import_nsq.import_topics(source, place, node=node, now=time.time_ns(), chosen=topics)
        with progress_bars(quiet=quiet, unit=lambda count: f"{count:,}") as report:
            for event in events:
                if isinstance(event, import_nsq.ImportProgress):
                    report(event.topic, event.done, event.total)
                else:
                    done.append(event)
    finally:
        place.release()
    for one in () if quiet else done:
        _print(one)
    return done


def _print(one: Any) -> None:
    if one.skipped:
        print(f"{one.topic}: not imported: {one.skipped}", file=sys.stderr)
        return
    channels = ", ".join(f"{name} {count:,}" for name, count in one.channels.items()) or "no channel"
    print(f"{one.topic}: {one.messages:,} messages; waiting in channels: {channels}")
    for damage in one.damage:
        print(f"{one.topic}: {damage.path}: offset {damage.offset}: {damage.reason}", file=sys.stderr)
