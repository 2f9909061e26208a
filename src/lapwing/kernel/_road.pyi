from collections.abc import Callable, Collection
from typing import Any

from lapwing.kernel._receiver import Receiver
from lapwing.kernel.tail import Tail

class Inlet:
    tail: Tail
    topic: Any
    name: str
    open: bool
    def close(self) -> None: ...

class Round:
    inlets: dict[bytes, Inlet]
    watched: Collection[str]
    def __init__(self, watched: Collection[str]) -> None: ...
    def begin(self, now: int, skew: int) -> None: ...
    def open(self, topic: Any, tail: Tail, base: int) -> Inlet: ...
    def shut(self, inlet: Inlet) -> None: ...
    def news(self) -> tuple[list[Any], list[Exception]]: ...

class Finishes:
    def take(self) -> tuple[list[bytes], list[Any]]: ...

class NsqIntake(Receiver):
    def __init__(
        self,
        round_: Round,
        *,
        max_count: int,
        max_size: int,
        max_body: int,
        max_defer: int,
        rows: Callable[[int, int, bytes], object],
        waits: bool,
    ) -> None: ...
    def news(
        self,
    ) -> tuple[list[tuple[Any, Any, str, int, int, int]], list[tuple[Any, str, Exception]], list[Finishes]]: ...

class RedisIntake(Receiver):
    streams: dict[bytes, Any]
    commands: int
    def __init__(
        self, round_: Round, max_entry: int, refusal: Callable[[Exception], bytes], work: object
    ) -> None: ...
    def open(self, key: bytes, stream: Any, inlet: Inlet) -> None: ...
