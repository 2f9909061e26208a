"""The acknowledgement of a publish."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from lapwing.records import dataclass

if TYPE_CHECKING:
    from lapwing.errors import LapwingError


class Receipt(Protocol):
    """The acknowledgement of a publish."""

    def settle(self, sequence: int, error: LapwingError | None, /) -> None:
        """Note that the messages are in the log from `sequence` on (synced, with `fsync`), or why they are not."""


@dataclass(frozen=True, slots=True)
class CallReceipt:
    """A receipt that calls a function."""

    settle: Callable[[int, LapwingError | None], None]


NO_RECEIPT: Final = CallReceipt(lambda sequence, error: None)  # the caller learns the outcome in another way
