"""The start of a node with a remote log: own the log, and have the data path hold what it does."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Self

from lapwing.broker.keeper.replicated_storage import ReplicatedStorage
from lapwing.errors import NotReleased, RemoteError
from lapwing.log.remote.changes import Changes
from lapwing.log.remote.engines import open_engine
from lapwing.log.remote.owner import Owned, own
from lapwing.net.machine import boot_id
from lapwing.nsqd.remote_engine import CountedEngine, RequestCount
from lapwing.nsqd.replicator import Replicator

if TYPE_CHECKING:
    from lapwing.broker.broker import Broker
    from lapwing.broker.settings.options import Options
    from lapwing.errors import Fenced
    from lapwing.net.logs import Log


class RemoteStart:
    """A remote log that this node owns, on the way from the claim to the broker."""

    def __init__(
        self, url: str, engine: CountedEngine, count: RequestCount, owned: Owned, now: Callable[[], int]
    ) -> None:
        self._url = url
        self._count = count
        self._engine = engine
        self._owned = owned
        self._now = now
        self._changes = Changes(owned.ends)
        self.node = owned.remote.node  # in the ids of messages, whatever --node-id is: ids and sequences continue

    @classmethod
    async def own(cls, options: Options, *, now: Callable[[], int], log: Log) -> Self:
        """Claim the remote log, and restore the data path if need be. Raises as `log/remote/owner.own`."""
        count = RequestCount(now)
        engine = CountedEngine(open_engine(options.remote), count, patient=True)
        port = options.tcp_address.rpartition(":")[2]
        claim = partial(
            own, engine, options.data_path, node=options.node_id, take_over=bool(options.take_over),
            owner=f"{options.broadcast_address}:{port} (process {os.getpid()})", now=now(), boot=boot_id(),
            report=log.info,
        )  # fmt: skip
        try:
            owned = await asyncio.to_thread(claim)
        except NotReleased as error:
            engine.close()
            raise RemoteError(f"{error}; if that process is gone, start with --take-over") from error
        except BaseException:
            engine.close()
            raise
        engine.patient = False  # from here on publishers wait for it
        log.info(f"{engine.place}: owned by this process, node {owned.remote.node}, epoch {owned.remote.epoch}")
        return cls(options.remote, engine, count, owned, now)

    def storage(
        self, options: Options, *, now: Callable[[], int], log: Log, open_files: int
    ) -> ReplicatedStorage:
        """Return the storage of the data path."""
        return ReplicatedStorage(
            self._owned.place, self.node, options.log_options, self._changes, now=now, report=log.warn,
            boot_id=boot_id(), open_files=open_files,
        )  # fmt: skip

    def replicator(
        self,
        broker: Broker,
        schedule_flush: Callable[[], None],
        observe: Callable[[float], None],
        now: Callable[[], int],
        log: Log,
        on_fenced: Callable[[Fenced], None],
    ) -> Replicator:
        """Return what writes the records, and begin."""
        replicator = Replicator(
            broker, self._owned, self._changes, self._count,
            lambda: CountedEngine(open_engine(self._url), self._count, patient=True),
            schedule_flush=schedule_flush, observe=observe, now=now, log=log, on_fenced=on_fenced,
        )  # fmt: skip
        replicator.start()
        return replicator

    async def give_back(self, log: Log) -> None:
        """Release the remote log after a start that failed; nothing was acknowledged."""
        try:
            await asyncio.to_thread(self._owned.remote.release, now=self._now())
        except RemoteError as error:
            log.warn(f"{self._engine.place} is not released: {error}")
        self.close()

    def close(self) -> None:
        """Let others have the data path."""
        self._owned.place.release()
        self._engine.close()
