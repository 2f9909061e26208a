"""Requests of one client that are like an earlier one, answered as bytes.

A consumer sends the same XREADGROUP again and again, to the byte, and XACKs that differ in their ids alone. The intake
of a connection that waits for nothing gives each of its requests to `RepeatedRequests.answer` first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapwing.errors import LapwingError
from lapwing.wire.resp import replies
from lapwing.wire.resp.errors import ErrorReply
from lapwing.wire.resp.parse_reads import Position, parse_xread
from lapwing.wire.resp.reply_reader import encode

if TYPE_CHECKING:
    from lapwing.broker.channel.ledger import Holder
    from lapwing.sessions.redis.group import Group
    from lapwing.sessions.redis.session import RedisSession

_LONGEST: Final = 1024  # bytes of an XREADGROUP, or of the first words of an XACK, that are kept


class RepeatedRequests:
    """The last plain XREADGROUP and XACK of one client, in database 0."""

    __slots__ = ("_acked", "_count", "_head", "_holder", "_key", "_read", "_request", "_session", "_waits", "_words")

    def __init__(self, session: RedisSession) -> None:
        self._session = session
        self._words: list[bytes] = []  # of the XREADGROUP
        self._request = b""  # the same
        self._key = b""
        self._count = 0
        self._waits = False
        self._read: Group | None = None
        self._holder: Holder | None = None
        self._head = b""  # the first three words of the XACK
        self._acked: Group | None = None

    def note_ack(self, words: list[bytes]) -> None:
        """Remember an XACK that was carried out."""
        group = self._session.context.known_group(words[1], words[2], 0)
        if group is not self._acked:
            head = encode(*words[:3])[4:]
            self._head, self._acked = (head, group) if len(head) <= _LONGEST else (b"", None)

    def note_read(self, words: list[bytes]) -> None:
        """Remember an XREADGROUP that was carried out, if it only delivers new entries of one stream."""
        if words == self._words or sum(map(len, words)) > _LONGEST:
            return
        try:
            asked = parse_xread(words)
        except ErrorReply:
            return
        if not asked.is_plain or not asked.count or asked.max_count or asked.positions != [Position.NEW.value]:
            return
        group = self._session.context.known_group(asked.keys[0], asked.group or b"", 0)
        holder = group.ledger.named.get(asked.consumer.decode("latin-1")) if group is not None else None
        if group is not None and holder is not None:
            self._words, self._request, self._key, self._count = words, encode(*words), asked.keys[0], asked.count
            self._read, self._holder, self._waits = group, holder, asked.block is not None

    def answer(self, request: bytes, now: int) -> bytes | None:
        """Carry out a request that is like the last one; return the reply, or None if it has to be parsed."""
        session = self._session
        try:
            if request == self._request:
                reply, command = self._answer_read(now), "xreadgroup"
            elif self._acked is not None:
                count = self._acked.acknowledge_request(request, self._head, now=now)
                reply, command = None if count is None else replies.integer(count), "xack"
            else:
                return None
        except LapwingError as error:
            reply = session.failed(error)
        if reply is not None:
            session.peer.active, session.peer.command = now, command
        return reply

    def _answer_read(self, now: int) -> bytes | None:
        group, holder = self._read, self._holder
        if group is None or holder is None or group.channel.exiting or not holder.named:
            self._words, self._request, self._read, self._holder = [], b"", None, None
            return None
        group.stream.topic.write_pending(now=now)
        holder.seen = now
        parts, count = group.read(holder, self._count, now=now)
        if count:
            return replies.streams([(self._key, count, parts)], self._session.protocol)
        if self._waits:
            return None
        group.channel.journal_later()
        return replies.null_array(self._session.protocol)
