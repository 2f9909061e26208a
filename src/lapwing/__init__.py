"""lapwing: a realtime distributed message queue, wire-compatible with NSQ.

`from lapwing import Producer, Consumer, Message` gives the asyncio client, `LogReader` reads logs without consuming.
The names are imported on first use, so that the start of a daemon does not pay for the client.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lapwing.client.consumer import Consumer
    from lapwing.client.log_reader import LogReader
    from lapwing.client.message import Hold, Message, Reject, Requeue
    from lapwing.client.producer import Producer

__version__ = "0.1.0"

__all__ = ["Consumer", "Hold", "LogReader", "Message", "Producer", "Reject", "Requeue", "__version__"]

_ROOMS = {
    "Consumer": "lapwing.client.consumer",
    "Hold": "lapwing.client.message",
    "LogReader": "lapwing.client.log_reader",
    "Message": "lapwing.client.message",
    "Producer": "lapwing.client.producer",
    "Reject": "lapwing.client.message",
    "Requeue": "lapwing.client.message",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'lapwing' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_ROOMS[name]), name)
