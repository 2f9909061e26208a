"""The delay before a message is delivered again that has failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lapwing.broker.settings.definitions import ChannelSettings

_MOST_DOUBLINGS: Final = 1000  # beyond that any factor above 1.05 has long passed the longest delay


def delay_after(failures: int, settings: ChannelSettings, random: Callable[[], float]) -> int:
    """Return the ns to wait after that many failures: growing, at most `retry_max`, then varied by the jitter.

    `random` gives numbers of [0, 1).
    """
    first = settings.retry_first
    if not first:
        return 0
    try:
        delay = first * settings.retry_factor ** min(failures - 1, _MOST_DOUBLINGS)
    except OverflowError:
        delay = settings.retry_max
    delay = min(delay, settings.retry_max)
    return max(int(delay * (1 + settings.retry_jitter * (2 * random() - 1))), 0)
