from collections.abc import Callable
from typing import Final

from lapwing.net.polled import PolledTransport

LIMIT: Final[int]

class Publishes:
    line: bytes
    taken: Callable[[], None]
    owners: list[PolledTransport]
    def __init__(
        self,
        line: bytes,
        taken: Callable[[], None],
        *,
        max_count: int,
        max_size: int,
        max_body: int,
        max_headers: int = 0,
    ) -> None: ...
    def take(self) -> tuple[list[bytes], list[tuple[PolledTransport, int, int]]]: ...

class Additions(Publishes):
    def __init__(self) -> None: ...

class LogTail:
    publishes: Publishes
    failed: bool
    def __init__(self, publishes: Publishes) -> None: ...
    def aim(self, file: int, offset: int, room: int, first_id: int, ahead: int, stays: bool) -> None: ...
    def take(self) -> tuple[bytes, int, list[tuple[PolledTransport, int]]]: ...

class XaddTail(LogTail):
    newest: int
    def __init__(
        self,
        additions: Additions,
        key: bytes,
        max_entry: int,
        find: Callable[[bytes, int, int], tuple[int, int, bytes]],
        frame: Callable[[bytes, int, int, bytes], tuple[bytes, int, int]],
        reply: Callable[[int, int, int], bytes],
    ) -> None: ...
    def aim_entries(self, sequence: int, least: int, field: bytes) -> None: ...

class SocketSet:
    def __len__(self) -> int: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...
    def add(self, fd: int, owner: PolledTransport) -> None: ...
    def watch(self, fd: int, *, reading: bool, writing: bool) -> None: ...
    def remove(self, fd: int) -> None: ...
    def receive(
        self, tail: LogTail | None = None
    ) -> tuple[list[tuple[PolledTransport, bytes | int | None]], list[Publishes]]: ...
    def send(self, fd: int, data: bytes) -> int: ...
