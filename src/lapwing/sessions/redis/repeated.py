"""Requests that a client sends again and again: what the last one meant, so that the next one need not be parsed.

A consumer sends the same XREADGROUP each time, to the byte, and XACKs that differ in their ids alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapwing.wire.resp import replies
from lapwing.wire.resp.errors import ErrorReply
from lapwing.wire.resp.parse_reads import Position, parse_xread

if TYPE_CHECKING:
    from lapwing.broker.channel.ledger import Holder
    from lapwing.sessions.redis.context import RedisContext
    from lapwing.sessions.redis.group import Group

_LONGEST: Final = 1024  # bytes of an XREADGROUP, or of the first words of an XACK, that are kept


class RepeatedRequests:
    """The last plain XREADGROUP and XACK of one client, in database 0."""

    __slots__ = ("_acked", "_count", "_head", "_holder", "_key", "_read", "_request", "_waits", "command")

    def __init__(self) -> None:
        self.command = ""  # that was answered last
        self._request = b""  # the XREADGROUP
        self._key = b""
        self._count = 0
        self._waits = False
        self._read: Group | None = None
        self._holder: Holder | None = None
        self._head = b""  # the first three words of the XACK
        self._acked: Group | None = None

    def note(self, request: bytes, words: list[bytes], context: RedisContext) -> None:
        """Remember a request that was carried out, if it is plain."""
        if words[0][1:2] in b"Aa":
            self._note_ack(words, context)
        elif request != self._request and len(request) <= _LONGEST:
            self._note_read(request, words, context)

    def _note_ack(self, words: list[bytes], context: RedisContext) -> None:
        head = b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words[:3]])
        if len(head) <= _LONGEST:
            self._head, self._acked = head, context.known_group(words[1], words[2], 0)

    def _note_read(self, request: bytes, words: list[bytes], context: RedisContext) -> None:
        try:
            asked = parse_xread(words)
        except ErrorReply:
            return
        if not asked.is_plain or not asked.count or asked.max_count or asked.positions != [Position.NEW.value]:
            return
        group = context.known_group(asked.keys[0], asked.group or b"", 0)
        holder = group.ledger.named.get(asked.consumer.decode("latin-1")) if group is not None else None
        if group is not None and holder is not None:
            self._request, self._key, self._count = request, asked.keys[0], asked.count
            self._read, self._holder, self._waits = group, holder, asked.block is not None

    def answer(self, request: bytes, protocol: int, *, now: int) -> bytes | None:
        """Carry out a request that is like the last one; return the reply, or None if it has to be parsed."""
        if request == self._request:
            self.command = "xreadgroup"
            return self._read_again(protocol, now)
        if self._acked is None:
            return None
        self.command = "xack"
        count = self._acked.acknowledge_request(request, self._head, now=now)
        return None if count is None else replies.integer(count)

    def _read_again(self, protocol: int, now: int) -> bytes | None:
        group, holder = self._read, self._holder
        if group is None or holder is None or group.channel.exiting or not holder.named:
            self._request, self._read, self._holder = b"", None, None
            return None
        group.stream.topic.write_pending(now=now)
        holder.seen = now
        parts, count = group.read(holder, self._count, now=now)
        if count:
            return replies.streams([(self._key, count, parts)], protocol)
        if self._waits:
            return None
        group.channel.journal_later()
        return replies.null_array(protocol)
