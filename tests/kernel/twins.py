"""Both twins of the kernel, and what each makes of the same call."""

import copy
from array import array
from collections.abc import Callable
from types import ModuleType
from typing import Any

from lapwing.errors import PublishRefused
from lapwing.kernel import pure

try:
    from lapwing.kernel import _speed
except ImportError:  # a host without a compiler has one twin, which agrees with itself
    TWINS: list[ModuleType] = [pure]
else:
    TWINS = [pure, _speed]

NODE = 7
BASE = NODE << 54

# the same bytes in every dress that a caller may give them
DRESSES: list[Callable[[bytes], Any]] = [
    bytes,
    bytearray,
    memoryview,
    lambda data: memoryview(bytearray(data)),
    lambda data: memoryview(b"before" + data + b"after")[6 : 6 + len(data)],
    lambda data: array("B", data),
]

# and in those that only some lengths or no function can take
ODD_DRESSES: list[Callable[[bytes], Any]] = [
    lambda data: memoryview(data)[::2],
    lambda data: memoryview(data)[::-1],
    lambda data: array("H", data[: len(data) // 2 * 2]),
    lambda data: memoryview(array("i", data[: len(data) // 4 * 4])),
    lambda data: memoryview(data).cast("c") if data else memoryview(data),
    lambda data: data.decode("latin-1"),
    lambda data: list(data),
    lambda data: None,
]


def outcome(twin: ModuleType, name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a call gives back or raises, and what it does to its arguments."""
    try:
        answer = getattr(twin, name)(*arguments)
    except PublishRefused as refused:
        return "refused", refused.code, refused.index, refused.value
    except Exception as error:
        return "raised", type(error)
    kept = [argument for argument in arguments if isinstance(argument, dict | bytearray)]
    return "gave", answer, _shapes(answer), kept


def _shapes(answer: Any) -> Any:
    return [type(part) for part in answer] if isinstance(answer, tuple) else type(answer)


def both(name: str, *arguments: Any) -> tuple[Any, ...]:
    """What the twins make of a call, which must be the same."""
    outcomes = []
    for twin in TWINS:
        own = tuple(copy.copy(each) if isinstance(each, dict | bytearray) else each for each in arguments)
        outcomes.append(outcome(twin, name, own))
    assert all(each == outcomes[0] for each in outcomes), f"{name}: {outcomes}"
    return outcomes[0]


def room(rows: int, size: int) -> list[bytearray]:
    """Columns for `rows` messages with `size` bytes of bodies: ids, times, offsets, bodies."""
    return [bytearray(16 * rows), bytearray(8 * rows), bytearray(4 * rows + 4), bytearray(size)]


def contents(columns: list[bytearray], rows: int) -> tuple[bytes, "array[int]", "array[int]", bytes]:
    """What the first rows of filled columns say."""
    ids, times, offsets, bodies = columns
    places = array("i", bytes(offsets[: 4 * rows + 4]))
    return bytes(ids[: 16 * rows]), array("q", bytes(times[: 8 * rows])), places, bytes(bodies[: places[-1]])


def columns_of(kernel: ModuleType, data: Any, start: int, stop: int) -> tuple[Any, ...]:
    """The count, the end and the columns of all frames in [start, stop)."""
    columns = room(5000, 1 << 17)
    count, end = kernel.decode_columns(data, start, stop, 0, *columns)
    return count, end, *contents(columns, count)


def fins(*sequences: int, base: int = BASE) -> bytes:
    """The run of FINs for these sequences."""
    return b"".join(b"FIN %016x\n" % (base + sequence) for sequence in sequences)
