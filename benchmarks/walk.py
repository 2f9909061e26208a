"""Count the files and functions of lapwing that one message passes, from PUB to its delivery, and on to its FIN.

    python benchmarks/walk.py           both counts, for NSQ's protocol and for Redis
    python benchmarks/walk.py --list    and which functions they are, in the order of their first call

nsqd runs in this process with the pure kernel, so that every function is seen. Each walk is made a few times on a topic
that is there, and the shortest counts: a timer or a checkpoint may come in between.
"""

import argparse
import asyncio
import os
import struct
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

os.environ["LAPWING_PURE"] = "1"

import uvloop

import lapwing
from lapwing.broker.settings.options import Options
from lapwing.net.logs import Level, Log
from lapwing.nsqd.daemon import Daemon

HOME = str(Path(lapwing.__file__).parent)
TRIES = 7
BODY = b"hello"
FRAME = 34 + len(BODY)
ANSWER = 10  # bytes of an OK

Step = Callable[[], Awaitable[None]]


class Walk:
    """The functions of lapwing that are called while it is open, in order."""

    def __init__(self) -> None:
        self.functions: dict[tuple[str, str], None] = {}

    def __enter__(self) -> "Walk":
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(HOME) and not code.co_name.startswith("<"):
            self.functions[code.co_filename[len(HOME) + 1 :], code.co_qualname] = None

    @property
    def files(self) -> set[str]:
        """The files that the functions are in."""
        return {file for file, _ in self.functions}


async def shortest(prepare: Step, walk: Step) -> Walk:
    """Return the walk with the fewest functions of several."""
    found = []
    for _ in range(TRIES):
        await prepare()
        await asyncio.sleep(0.02)
        with Walk() as walked:
            await walk()
        found.append(walked)
    return min(found, key=lambda each: len(each.functions))


async def nothing() -> None:
    """Prepare nothing."""


async def nsq(port: int) -> list[tuple[str, Walk]]:
    """Walk with a publisher and a consumer that speak NSQ's protocol."""
    read, write = await asyncio.open_connection("127.0.0.1", port)
    take, give = await asyncio.open_connection("127.0.0.1", port)
    command = b"PUB walk\n" + struct.pack(">I", len(BODY)) + BODY
    write.write(b"  V2" + command)
    await read.readexactly(ANSWER)
    give.write(b"  V2SUB walk ch\nRDY 1\n")
    await take.readexactly(ANSWER)
    frame = await take.readexactly(FRAME)

    async def finish() -> None:
        give.write(b"FIN %b\n" % frame[18:34])
        await asyncio.sleep(0.02)  # it has no answer

    async def publish() -> None:
        nonlocal frame
        write.write(command)
        frame = await take.readexactly(FRAME)
        await read.readexactly(ANSWER)

    published = await shortest(finish, publish)
    await finish()
    found = [("PUB to delivery", published), ("FIN", await shortest(publish, finish))]
    write.close()
    give.close()
    return found


async def redis(port: int) -> list[tuple[str, Walk]]:
    """Walk with a client that speaks Redis's protocol."""
    read, write = await asyncio.open_connection("127.0.0.1", port)
    entry = b""

    async def ask(*words: bytes) -> bytes:
        write.write(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words))
        return await read.read(1 << 16)

    async def add() -> None:
        await ask(b"XADD", b"stream", b"*", b"data", BODY)

    async def take() -> None:
        nonlocal entry
        answer = await ask(b"XREADGROUP", b"GROUP", b"g", b"c", b"COUNT", b"1", b"STREAMS", b"stream", b">")
        entry = next(line for line in answer.split(b"\r\n") if b"-" in line)

    async def acknowledge() -> None:
        await ask(b"XACK", b"stream", b"g", entry)

    async def take_one() -> None:
        await add()
        await take()

    await add()
    await ask(b"XGROUP", b"CREATE", b"stream", b"g", b"0")
    await take()
    await acknowledge()
    added = await shortest(nothing, add)
    return [
        ("XADD", added),
        ("XREADGROUP", await shortest(nothing, take)),
        ("XACK", await shortest(take_one, acknowledge)),
    ]


async def walks() -> list[tuple[str, Walk]]:
    """Make all walks on one daemon."""
    with tempfile.TemporaryDirectory() as folder:
        anywhere = "127.0.0.1:0"
        options = Options(data_path=folder, tcp_address=anywhere, http_address=anywhere, redis_address=anywhere)
        daemon = Daemon(options, Log("", Level.FATAL))
        await daemon.start()
        assert daemon.redis is not None
        try:
            return [*await nsq(daemon.tcp.port), *await redis(daemon.redis.port)]
        finally:
            await daemon.stop()


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="list the functions of each walk")
    arguments = parser.parse_args()
    for name, walk in uvloop.run(walks()):
        print(f"{name:20} {len(walk.files):4} files {len(walk.functions):5} functions")
        if arguments.list:
            for file, function in walk.functions:
                print(f"    {file:44} {function}")


if __name__ == "__main__":
    main()
