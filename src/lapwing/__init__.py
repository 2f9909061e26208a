"""lapwing: a realtime distributed message queue, wire-compatible with NSQ.

`from lapwing import App, Producer, Consumer, Message` gives all that a program needs; the names are in `__all__`. They
are imported on first use, so that the start of a daemon does not pay for the client.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lapwing.client.admin import Admin, LetterFilter
    from lapwing.client.admin_results import NodesFailed, SeveralNodes
    from lapwing.client.app import App
    from lapwing.client.cluster_client import NoSuchNode, NothingThere, UpstreamFailed
    from lapwing.client.consumer import Consumer, ConsumerStats
    from lapwing.client.errors import (
        ClientError,
        ConnectionLost,
        PublishFailed,
        PublishTimeout,
        Refused,
        Stopped,
        Unreachable,
    )
    from lapwing.client.http import CallFailed
    from lapwing.client.inbox import RequestTimeout
    from lapwing.client.log_reader import LogMessage, LogReader, NoLog, NoTopic
    from lapwing.client.message import Hold, Message, Reject, Requeue
    from lapwing.client.options import ClientOptions
    from lapwing.client.producer import Producer
    from lapwing.client.sync import SyncConsumer, SyncProducer
    from lapwing.client.sync_admin import SyncAdmin
    from lapwing.errors import ConfigError, LapwingError

__version__ = "0.1.0"

__all__ = [
    "Admin",
    "App",
    "CallFailed",
    "ClientError",
    "ClientOptions",
    "ConfigError",
    "ConnectionLost",
    "Consumer",
    "ConsumerStats",
    "Hold",
    "LapwingError",
    "LetterFilter",
    "LogMessage",
    "LogReader",
    "Message",
    "NoLog",
    "NoSuchNode",
    "NoTopic",
    "NodesFailed",
    "NothingThere",
    "Producer",
    "PublishFailed",
    "PublishTimeout",
    "Refused",
    "Reject",
    "RequestTimeout",
    "Requeue",
    "SeveralNodes",
    "Stopped",
    "SyncAdmin",
    "SyncConsumer",
    "SyncProducer",
    "Unreachable",
    "UpstreamFailed",
    "__version__",
]

_MODULES = {
    "lapwing.client.admin": ("Admin", "LetterFilter"),
    "lapwing.client.admin_results": ("NodesFailed", "SeveralNodes"),
    "lapwing.client.app": ("App",),
    "lapwing.client.cluster_client": ("NoSuchNode", "NothingThere", "UpstreamFailed"),
    "lapwing.client.consumer": ("Consumer", "ConsumerStats"),
    "lapwing.client.errors": (
        "ClientError", "ConnectionLost", "PublishFailed", "PublishTimeout", "Refused", "Stopped", "Unreachable",
    ),
    "lapwing.client.http": ("CallFailed",),
    "lapwing.client.inbox": ("RequestTimeout",),
    "lapwing.client.log_reader": ("LogMessage", "LogReader", "NoLog", "NoTopic"),
    "lapwing.client.message": ("Hold", "Message", "Reject", "Requeue"),
    "lapwing.client.options": ("ClientOptions",),
    "lapwing.client.producer": ("Producer",),
    "lapwing.client.sync": ("SyncConsumer", "SyncProducer"),
    "lapwing.client.sync_admin": ("SyncAdmin",),
    "lapwing.errors": ("ConfigError", "LapwingError"),
}  # fmt: skip
_ROOMS = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'lapwing' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_ROOMS[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
