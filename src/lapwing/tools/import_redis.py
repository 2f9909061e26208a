"""Copy streams from a live Redis server into nsqd, through its Redis door: entries, groups and what is pending."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from lapwing.errors import LapwingError
from lapwing.tools.redis_client import RedisServer
from lapwing.wire.resp.errors import ErrorReply

BATCH: Final = 500  # entries that are read and written together


@dataclass(slots=True)
class Imported:
    """The result of copying one stream."""

    stream: str
    entries: int = 0
    groups: int = 0
    consumers: int = 0
    pending: int = 0
    not_pending: int = 0  # pending entries that were deleted from the stream: there is nothing to deliver
    problem: str = ""


class ImportFailed(LapwingError):
    """A stream cannot be copied; the text names the reason."""


Report = Callable[[str, int, int], None]  # stream, entries done, entries in all


class RedisImport:
    """Copies streams from one server to another; what is there already is not copied again."""

    def __init__(self, source: RedisServer, target: RedisServer, report: Report = lambda *_: None) -> None:
        self._source = source
        self._target = target
        self._report = report

    async def streams(self, pattern: str) -> list[bytes]:
        """Return the streams of the source whose key matches a pattern, sorted."""
        found: set[bytes] = set()
        cursor = b"0"
        while True:
            cursor, keys = await self._source.ask("SCAN", cursor, "MATCH", pattern, "COUNT", 1000, "TYPE", "stream")
            found.update(keys)
            if cursor == b"0":
                return sorted(found)

    async def copy(self, key: bytes, *, groups: bool = True) -> Imported:
        """Copy one stream. Raises `ImportFailed`, `RedisGone` or `ErrorReply`."""
        done = Imported(key.decode("utf-8", "replace"))
        source = await self._info(self._source, key)
        if source is None:
            raise ImportFailed(f"{done.stream}: there is no such stream on {self._source.address}")
        await self._copy_entries(key, source, done)
        await self._finish_ids(key, source)
        if groups:
            for group in await self._source.ask("XINFO", "GROUPS", key):
                await self._copy_group(key, _fields(group), done)
        return done

    @staticmethod
    async def _info(server: RedisServer, key: bytes) -> dict[str, Any] | None:
        try:
            return _fields(await server.ask("XINFO", "STREAM", key))
        except ErrorReply as error:
            if "no such key" in error.line:
                return None
            raise

    async def _copy_entries(self, key: bytes, source: dict[str, Any], done: Imported) -> None:
        """Copy the entries beyond the last one that the target has."""
        there = await self._info(self._target, key)
        start = b"-" if there is None or not there["length"] else b"(" + there["last-entry"][0]
        total = source["length"]
        while True:
            entries = await self._source.ask("XRANGE", key, start, "+", "COUNT", BATCH)
            if not entries:
                return
            replies = await self._target.ask_all([("XADD", key, entry, *pairs) for entry, pairs in entries])
            for reply in replies:
                if isinstance(reply, ErrorReply):
                    raise ImportFailed(f"{done.stream}: {self._target.address}: {reply.line}")
            done.entries += len(entries)
            start = b"(" + entries[-1][0]
            self._report(done.stream, done.entries, max(total, done.entries))

    async def _finish_ids(self, key: bytes, source: dict[str, Any]) -> None:
        """Give the copy the last id and the counts of the source."""
        if await self._info(self._target, key) is None:  # an empty stream: only a group creates it
            await self._target.ask("XGROUP", "CREATE", key, "lapwing-import", "$", "MKSTREAM")
            await self._target.ask("XGROUP", "DESTROY", key, "lapwing-import")
        words: list[bytes | str | int] = ["XSETID", key, source["last-generated-id"]]
        if "entries-added" in source:
            words += ["ENTRIESADDED", source["entries-added"], "MAXDELETEDID", source["max-deleted-entry-id"]]
        if source["last-generated-id"] != b"0-0":
            await self._target.ask(*words)

    async def _copy_group(self, key: bytes, group: dict[str, Any], done: Imported) -> None:
        """Create a group where it stands in the source, with its consumers and what they have pending."""
        name, last = group["name"], group["last-delivered-id"]
        read = group.get("entries-read")
        more: list[bytes | str | int] = ["ENTRIESREAD", read] if isinstance(read, int) else []
        try:
            await self._target.ask("XGROUP", "CREATE", key, name, last, *more)
        except ErrorReply as error:
            if not error.line.startswith("BUSYGROUP"):
                raise
            await self._target.ask("XGROUP", "SETID", key, name, last, *more)
        done.groups += 1
        for consumer in await self._source.ask("XINFO", "CONSUMERS", key, name):
            await self._target.ask("XGROUP", "CREATECONSUMER", key, name, _fields(consumer)["name"])
            done.consumers += 1
        start = b"-"
        while True:
            pending = await self._source.ask("XPENDING", key, name, start, "+", BATCH)
            if not pending:
                return
            claims = [
                ("XCLAIM", key, name, consumer, 0, entry, "IDLE", max(idle, 0), "RETRYCOUNT", count, "FORCE", "JUSTID")
                for entry, consumer, idle, count in pending
            ]
            for reply in await self._target.ask_all(claims):
                if isinstance(reply, ErrorReply):
                    raise ImportFailed(f"{done.stream}: group {name!r}: {reply.line}")
                done.pending += len(reply)
                done.not_pending += not reply
            start = b"(" + pending[-1][0]


def _fields(flat: list[Any]) -> dict[str, Any]:
    """Return a flat array of pairs as a dictionary."""
    return {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}
