"""Ledgers without a channel around them."""

from collections.abc import Collection

from lapwing.broker.channel.ledger import Ledger

MINUTE = 60_000_000_000


class NoSideLog:
    """No message has a copy in a side log."""

    def __init__(self) -> None:
        self.sequences: set[int] = set()

    def leave(self, sequences: object) -> None:
        """Do nothing: there is none."""

    def leave_all(self, *, keep: Collection[int]) -> None:
        """Do nothing: there is none."""

    def notice(self, sequences: object) -> None:
        """Do nothing: there is none."""


def new_ledger(*, max_timeout: int = 15 * MINUTE) -> Ledger:
    """Return an empty ledger."""
    return Ledger(NoSideLog(), None, max_timeout=max_timeout, journaled=False)  # type: ignore[arg-type]
