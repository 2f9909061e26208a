"""A door in front of a broker that passes bytes on up to a chosen moment: for killing the broker right then."""

import contextlib
import os
import re
import select
import socket
import threading
from dataclasses import dataclass
from pathlib import Path

Ends = tuple[tuple[str, int], tuple[str, int]]

_SIZE = re.compile(rb"^content-length: *(\d+)", re.IGNORECASE | re.MULTILINE)


@dataclass
class Moment:
    """When to hold: at a request that begins like this, once that part of it or so many bytes of its answer are there.

    The part of the request has been passed on then; of the answer, what came before that many bytes.
    """

    request: bytes
    sent: float | None = None  # of the request, 0 to 1
    answered: int | None = None  # bytes


class Relay:
    """Passes bytes on, both ways, on as many connections as there are. Only the first `moment` is held.

    To the broker it looks like another machine, unless it is `near`.
    """

    def __init__(self, address: str, *, near: bool = False) -> None:
        host, _, port = address.rpartition(":")
        self._broker = host, int(port)
        self._host = host if near else "127.0.0.2"
        self._moment: Moment | None = None
        self.requests: list[str] = []  # the first line of each, in order
        self.reached = threading.Event()
        self.held: Ends | None = None  # of the connection whose request is held
        self._released = threading.Event()
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._door.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def hold_at(self, moment: Moment) -> None:
        """Hold the next such request; `reached` is set when it is held."""
        self.reached.clear()
        self._released.clear()
        self._moment = moment

    def release(self) -> None:
        """End the connection that is held; others go on as before."""
        self._released.set()

    def close(self) -> None:
        """Let nobody in any more."""
        self.release()
        self._door.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._door.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                with socket.create_connection(self._broker, 5, (self._host, 0)) as broker:
                    self._pass_on(client, broker)
            except OSError:
                return  # either side is gone: the other one notices that its connection ends

    def _pass_on(self, client: socket.socket, broker: socket.socket) -> None:
        watched: Moment | None = None
        sent = size = answered = 0
        while True:
            for source in select.select([client, broker], [], [])[0]:
                data = source.recv(65536)
                if not data:
                    return
                if source is client:
                    if data.startswith((b"GET ", b"POST ")):
                        self.requests.append(data.partition(b" HTTP")[0].decode())
                        watched = self._moment if self._moment and data.startswith(self._moment.request) else None
                        head = data.partition(b"\r\n\r\n")[0]
                        found = _SIZE.search(head)
                        sent, answered, size = 0, 0, len(head) + 4 + (int(found[1]) if found else 0)
                    sent += len(data)
                    broker.sendall(data)
                    held = watched is not None and watched.sent is not None and sent >= watched.sent * size
                else:
                    answered += len(data)
                    held = watched is not None and watched.answered is not None and answered >= watched.answered
                    if not held:
                        client.sendall(data)
                if held:
                    self._moment = None
                    self.held = client.getpeername(), client.getsockname()
                    self.reached.set()
                    self._released.wait()
                    return


def owner(ends: Ends) -> int:
    """The process that has the first end of this connection of two IPv4 addresses, which is open at both.

    Only both ends together name a connection: the port of one may be that of others too, to other places, some of which
    nobody has any more.
    """
    wanted = [f"{socket.inet_aton(host)[::-1].hex()}:{port:04x}".upper() for host, port in ends]
    lines = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    inode = next(fields[9] for fields in lines if fields[1:3] == wanted)
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # not ours, or gone meanwhile
            if any(_link(entry) == f"socket:[{inode}]" for entry in (process / "fd").iterdir()):
                return int(process.name)
    raise LookupError(f"nobody has the connection {ends}")


def _link(descriptor: Path) -> str:
    """What a descriptor of a process is; nothing if it was closed meanwhile."""
    try:
        return os.readlink(descriptor)
    except OSError:
        return ""
