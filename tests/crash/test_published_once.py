"""nsqd killed amid publishes that are retried: each message-id is in the log once.

    python tests/crash/test_published_once.py 50      the long form, with so many kills
"""

import asyncio
import json
import random
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import daemons
from lapwing import Producer, kernel
from lapwing.client.errors import ClientError
from lapwing.log.log import DiskLog, LogOptions
from lapwing.log.options import boot_number
from lapwing.net.machine import boot_id

TOPIC = "once"


def set_window(daemon: daemons.Daemon) -> None:
    request = urllib.request.Request(
        f"{daemon.url}/topic/settings?topic={TOPIC}", json.dumps({"dedup_window": "1h"}).encode(), method="PATCH"
    )
    urllib.request.urlopen(urllib.request.Request(f"{daemon.url}/topic/create?topic={TOPIC}", b"")).close()
    urllib.request.urlopen(request).close()


async def publish(producer: Producer, over: asyncio.Event, numbers: range, confirmed: set[bytes]) -> None:
    """Publish bodies, one message and many at a time; the producer retries until nsqd confirms."""
    for number in numbers:
        if over.is_set():
            break
        bodies = [b"%d-%d" % (number, each) for each in range(random.choice((1, 1, 20, 200)))]
        await asyncio.gather(*(producer.publish(TOPIC, body) for body in bodies))
        confirmed.update(bodies)
    await producer.stop()


async def kill_often(path: Path, kills: int, durability: str) -> tuple[set[bytes], list[tuple[str, bytes]]]:
    """Return the bodies that were confirmed, and the id and body of every message in the log."""
    flags = (f"--durability={durability}", "--max-bytes-per-file=200000")
    daemon = daemons.start_nsqd(path, *flags)
    port = daemon.tcp
    try:
        set_window(daemon)
        over, confirmed = asyncio.Event(), set[bytes]()
        producers = [Producer(port, publish_timeout=120, max_reconnect_delay=0.05) for _ in range(4)]
        await asyncio.gather(*(producer.start() for producer in producers))
        work = [
            asyncio.create_task(publish(producer, over, range(first, 10_000_000, 4), confirmed))
            for first, producer in enumerate(producers)
        ]
        for _ in range(kills):
            before = len(confirmed)
            await asyncio.to_thread(daemons.until, lambda: len(confirmed) > before + 300, what="publishes")  # noqa: B023
            await asyncio.sleep(random.random() / 50)  # anywhere in a publish
            await asyncio.to_thread(daemon.kill)
            daemon = await asyncio.to_thread(
                lambda: daemons.start_nsqd(path, *flags, tcp_address=port, http_address="127.0.0.1:0")
            )
        over.set()
        done = await asyncio.gather(*work, return_exceptions=True)
        assert not [error for error in done if isinstance(error, BaseException)], done
    finally:
        daemon.kill()
    return confirmed, stored(path)


def stored(path: Path) -> list[tuple[str, bytes]]:
    # in the same run of the machine: after a power loss, frames without an index record would be set aside
    options = LogOptions(boot=boot_number(boot_id()))
    log = DiskLog(path / "topics" / f"t-{TOPIC}", 0, options=options)
    ids = {extra.sequence: extra.headers.get("message-id", "") for extra in log.extras(0, log.end)}
    found: list[tuple[str, bytes]] = []
    for first, _, frames in log.blocks(log.first, log.end, 1 << 20):
        messages, _ = kernel.decode_messages(frames, 0, len(frames))
        found += [(ids.get(sequence, ""), row[3]) for sequence, row in enumerate(messages, first)]
    log.close()
    return found


def check(confirmed: set[bytes], found: list[tuple[str, bytes]]) -> None:
    ids = [message_id for message_id, _ in found]
    assert confirmed, "nothing was published"
    assert all(ids), "a message without an id"
    assert len(set(ids)) == len(ids), "an id is in the log twice"
    bodies = [body for _, body in found]
    assert len(set(bodies)) == len(bodies), "a message is in the log twice"
    assert confirmed <= set(bodies), "a confirmed message is missing"


def test_each_id_is_in_the_log_once(tmp_path: Path) -> None:
    confirmed, found = asyncio.run(kill_often(tmp_path, 4, "os"))

    check(confirmed, found)


def main(arguments: list[str]) -> Any:
    kills = int(arguments[0]) if arguments else 50
    for durability in ("os", "fsync"):
        with tempfile.TemporaryDirectory() as folder:
            confirmed, found = asyncio.run(kill_often(Path(folder), kills, durability))
        check(confirmed, found)
        print(f"{durability}: {kills} kills, {len(found):,} messages, {len(confirmed):,} confirmed, each id once")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ClientError as error:
        sys.exit(str(error))
