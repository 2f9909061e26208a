"""A producer for each process, shared by its threads: forks inherit none."""

import os
import threading
from typing import Any, Final

from lapwing.client.sync import SyncProducer

LONGEST_DEFER: Final = 3600.0  # s, the default of --max-req-timeout

_producers: dict[tuple[Any, ...], SyncProducer] = {}
_connecting = threading.Lock()


def producer_of(nsqd: Any, lookupd: Any, client: dict[str, Any]) -> SyncProducer:
    """Return the producer of this process for these addresses. Raises `Unreachable`; the program's end closes it."""
    key = (os.getpid(), str(nsqd), str(lookupd), str(client))
    with _connecting:
        if key not in _producers:
            _producers[key] = SyncProducer(nsqd, lookupd=lookupd, **client)
        return _producers[key]
