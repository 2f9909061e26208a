"""`Admin` without `await`: each method is that of `Admin`, run in a thread with an event loop."""

import copy
from collections.abc import Callable, Coroutine, Iterable
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from lapwing.client.admin import Admin
from lapwing.client.sync import LoopThread

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[Admin, P], Coroutine[Any, Any, T]],
) -> "Callable[Concatenate[SyncAdmin, P], T]":
    """Return the method of `SyncAdmin` that runs one of `Admin`."""

    def call(self: "SyncAdmin", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.call(method(self._admin, *args, **kwargs))

    update_wrapper(call, method)
    return call


class SyncAdmin:
    """The administration of a cluster, for code that blocks; see `Admin`.

        with SyncAdmin("127.0.0.1:4151") as admin:
            admin.pause("orders", "billing")
    """

    def __init__(
        self, nsqd: str | Iterable[str] = (), *, lookupd: str | Iterable[str] = (), auth_secret: str = ""
    ) -> None:
        self._admin = Admin(nsqd, lookupd=lookupd, auth_secret=auth_secret)
        self._thread = LoopThread("lapwing-admin", self._finish)

    async def _finish(self, seconds: float | None) -> None:
        await self._admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, and end the thread. Twice is harmless."""
        self._thread.stop()

    def only(self, node: str) -> Self:
        """Return the administration of one node; see `Admin.only`."""
        limited = copy.copy(self)
        limited._admin = self._admin.only(node)
        return limited

    stats = _blocking(Admin.stats)
    counts = _blocking(Admin.counts)
    create = _blocking(Admin.create)
    register = _blocking(Admin.register)
    create_channel = _blocking(Admin.create_channel)
    pause = _blocking(Admin.pause)
    unpause = _blocking(Admin.unpause)
    empty = _blocking(Admin.empty)
    delete = _blocking(Admin.delete)
    tombstone = _blocking(Admin.tombstone)
    describe_settings = _blocking(Admin.describe_settings)
    settings = _blocking(Admin.settings)
    change_settings = _blocking(Admin.change_settings)
    policies = _blocking(Admin.policies)
    set_policy = _blocking(Admin.set_policy)
    remove_policy = _blocking(Admin.remove_policy)
    pending = _blocking(Admin.pending)
    claim = _blocking(Admin.claim)
    dead_topics = _blocking(Admin.dead_topics)
    dead_groups = _blocking(Admin.dead_groups)
    dead_letters = _blocking(Admin.dead_letters)
    redrive = _blocking(Admin.redrive)
    purge = _blocking(Admin.purge)
    redrive_status = _blocking(Admin.redrive_status)
    cancel_redrive = _blocking(Admin.cancel_redrive)
    seek = _blocking(Admin.seek)
    drain = _blocking(Admin.drain)
    undrain = _blocking(Admin.undrain)
    drain_status = _blocking(Admin.drain_status)
