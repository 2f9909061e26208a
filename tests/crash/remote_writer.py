"""A process that takes a remote log over and appends to it; each message that it may acknowledge is a line.

    python tests/crash/remote_writer.py URL NAME
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lapwing import kernel
from lapwing.errors import Fenced, RemoteFailed
from lapwing.log.remote.engines import open_engine
from lapwing.log.remote.image import Image
from lapwing.log.remote.record import Messages, Record
from lapwing.log.remote.remote_log import RemoteLog
from log.remote.stage import BEGUN, NODE, messages

FENCED = 3  # the exit status of a process that was replaced
_EVERY = 20  # records between two checkpoints


class Contents(Image):
    """An image that keeps the bodies of messages."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[bytes] = []

    def _add(self, part: Messages) -> None:
        found, _ = kernel.decode_messages(part.frames, 0, len(part.frames))
        self.bodies += [body for _, _, _, body in found]


def write(url: str, name: str) -> None:
    """Append until another process takes over. Raises `Fenced`."""
    log = RemoteLog(open_engine(url), owner=name)
    while not log.epoch:
        try:
            log.claim(NODE, now=1, take_over=True)
        except RemoteFailed:
            continue
    contents = Contents()
    contents.load(log)
    bodies, stored = contents.bodies, contents.stored.get("orders", [])
    begun = "orders" in contents.topics
    number = 0
    while True:
        number += 1
        body = b"%s-%d" % (name.encode(), number)
        part = messages(len(bodies), [body])
        settle(log, log.record([part] if begun else [BEGUN, part], now=2))
        begun = True
        os.write(1, b"%d %b\n" % (len(bodies), body))  # one write: a line is whole or not there
        bodies.append(body)
        if number % _EVERY == 0:
            begin = stored[-1].end if stored else 0
            try:
                more = [*stored, log.store([messages(begin, bodies[begin:])], now=3)]
                log.make_checkpoint([BEGUN, *more], now=3)
                stored = more
            except RemoteFailed:
                if log.unsettled is not None:
                    settle(log, log.unsettled)


def settle(log: RemoteLog, record: Record) -> None:
    """Append a record, however often it takes. Raises `Fenced`."""
    while True:
        try:
            log.append(record)
            return
        except RemoteFailed:
            continue


if __name__ == "__main__":
    try:
        write(sys.argv[1], sys.argv[2])
    except Fenced as error:
        print(error, file=sys.stderr)
        sys.exit(FENCED)
