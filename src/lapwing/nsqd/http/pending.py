"""`/channel/pending`, `/channel/claim` and `/channel/cancel`: who holds what, and how it is taken from them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any, Final

from lapwing import ids as message_ids
from lapwing import kernel
from lapwing.broker.channel.channel import Channel
from lapwing.broker.channel.entries import SHOWN, Entry, PendingScan, entry_of
from lapwing.broker.channel.ledger import State
from lapwing.broker.operations import claims
from lapwing.broker.operations.cancel import Cancellation
from lapwing.broker.settings import times
from lapwing.errors import ReadFailed
from lapwing.net.server.answers import JSON, Answer, Refused, StreamedAnswer, compact, value
from lapwing.net.server.requests import Request
from lapwing.net.server.routes import Reply, Route
from lapwing.nsqd.http.document import body_fields, boolean, member, read_document, whole_number, whole_parameter
from lapwing.nsqd.http.permissions import CHANNEL_ADMIN, require
from lapwing.nsqd.http.publishing import named
from lapwing.nsqd.turn import Turn

MAX_ENTRIES: Final = 10_000  # entries of one answer
OTHER_NODE: Final = "an id of another node"  # the reason for which a claim leaves an id out
MAX_BODIES: Final = 16 << 20  # bytes of bodies in one answer
_STEP: Final = 50  # messages that are read before others get their turn
_LOOKED: Final = 10  # pending messages that a claim looks at for each that it may take
_LONGEST: Final = 4096  # bytes of a reason
_SHOWN: Final = 32  # characters of a wrong id in an error
_MILLISECOND: Final = 1_000_000
_KEYS: Final = (
    "topic", "channel", "ids", "sequences", "state", "min_idle", "holder", "action", "to", "limit", "after", "delay",
    "reason",
)  # fmt: skip
_EXAMPLE: Final = '{"min_idle": 60000, "action": "ready"}'
_CANCEL_KEYS: Final = ("topic", "channel", "message_ids", "dry_run")
_CANCEL_EXAMPLE: Final = '{"message_ids": ["invoice-17"]}'


class PendingApi:
    def __init__(self, turn: Turn) -> None:
        self._broker, self._now, self._schedule_flush = turn.broker, turn.clock.now, turn.schedule_flush

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/channel/pending", self.pending, access=CHANNEL_ADMIN),
            Route("POST", "/channel/claim", self.claim, max_body=1 << 20, access=CHANNEL_ADMIN),
            Route("POST", "/channel/cancel", self.cancel, max_body=2 << 20, access=CHANNEL_ADMIN),
        ]

    # --- who holds what ----------------------------------------------------------------------------------------

    def pending(self, request: Request) -> Reply:
        """List pending messages in order of their sequences, a page at a time."""
        query = request.query
        topic = named(request.head, "topic", "INVALID_ARG_TOPIC")
        channel = self._broker.existing_channel(topic, named(request.head, "channel", "INVALID_ARG_CHANNEL"))
        states = _states(query.get("state"))
        limit = min(whole_parameter(query, "limit", 100), MAX_ENTRIES)
        scan = PendingScan(
            channel.ledger,
            most=limit + 1 if not query.get("min_idle") else _LOOKED * limit,
            states=states if not query.get("min_idle") else {State.IN_FLIGHT},
            holder=query.get("holder"),
            after=whole_parameter(query, "after", -1),
        )
        pieces = self._pieces(
            channel,
            scan,
            limit,
            min_idle=whole_parameter(query, "min_idle", 0) * _MILLISECOND,
            bodies=query.get("body") in ("true", "1"),
        )
        return StreamedAnswer(200, content_type=JSON, pieces=pieces)

    async def _pieces(
        self, channel: Channel, scan: PendingScan, limit: int, *, min_idle: int, bodies: bool
    ) -> AsyncIterator[bytes]:
        await _finished(scan)
        ledger = channel.ledger
        counts = {
            State.IN_FLIGHT.value: ledger.with_consumers,
            State.READY.value: ledger.waiting,
            State.DEFERRED.value: len(ledger.deferred),
        }
        about = compact({"topic": channel.topic.name, "channel": channel.name, "counts": counts})
        yield about[:-1] + b',"entries":['
        shown = size = 0
        following: int | None = None
        for number, sequence in enumerate(scan.found):
            if number % _STEP == 0:
                await asyncio.sleep(0)
            entry = entry_of(ledger, sequence, now=self._now())
            if entry is None or (min_idle and entry.idle < min_idle):
                continue
            if shown == limit or size > MAX_BODIES:
                break
            found = _shown(channel, entry, bodies)
            size += found["size"] or 0
            yield (b"," if shown else b"") + compact(found)
            shown += 1
            following = sequence
        else:
            if len(scan.found) < scan.most:
                following = None
            elif scan.found:
                following = scan.found[-1]
        yield b'],"next":%b}' % compact(following)

    # --- taking it from them -----------------------------------------------------------------------------------

    async def claim(self, request: Request) -> Answer:
        """Make pending messages ready, finish, reject or defer them, whoever holds them."""
        document = read_document(request, _KEYS, _EXAMPLE)
        topic, name = member(document, "topic", str), member(document, "channel", str)
        require(request, CHANNEL_ADMIN, topic, name)
        channel = self._broker.existing_channel(topic, name)
        action = document.get("action", "")
        if action not in claims.ACTIONS:
            raise Refused(400, f"action: one of {', '.join(claims.ACTIONS)} expected")
        limit = whole_number(document, "limit", 100, least=1, most=MAX_ENTRIES)
        longest = self._broker.options.longest_defer // _MILLISECOND
        delay = whole_number(document, "delay", 0, most=longest) * _MILLISECOND
        if action == "defer" and not delay:
            raise Refused(400, "delay: milliseconds above 0 expected, as the action is defer")
        to = member(document, "to", str, "")
        if to and action != "ready":
            raise Refused(400, "to: only what is made ready can be handed to a consumer: use the action ready")
        error = member(document, "reason", str, "")[:_LONGEST]
        refused: dict[str, str] = {}
        chosen, following = await self._chosen(channel, document, limit, refused)
        if channel.exiting:
            raise Refused(404, "CHANNEL_NOT_FOUND")
        done = claims.claim(channel, chosen, action, now=self._now(), delay=delay, error=error, to=to)
        self._broker.checkpoint_topic(channel.topic, now=self._now())
        self._schedule_flush()
        ids = [channel.topic.id_of(sequence) for sequence in done]
        answer = {"topic": topic, "channel": name, "claimed": len(done), "ids": ids, "next": following}
        return value(answer | {"refused": refused} if refused else answer)

    async def cancel(self, request: Request) -> Answer:
        """Finish the messages that wait and have these message-ids."""
        document = read_document(request, _CANCEL_KEYS, _CANCEL_EXAMPLE)
        topic, name = member(document, "topic", str), member(document, "channel", str)
        require(request, CHANNEL_ADMIN, topic, name)
        channel = self._broker.existing_channel(topic, name)
        wanted = member(document, "message_ids", list)
        if not 0 < len(wanted) <= MAX_ENTRIES or not all(isinstance(each, str) and each for each in wanted):
            raise Refused(400, f"message_ids: a list of 1 to {MAX_ENTRIES} ids expected, such as {_CANCEL_EXAMPLE}")
        dry_run = boolean(document, "dry_run")
        cancellation = Cancellation(channel, wanted, dry_run=dry_run)
        while not cancellation.step(now=self._now()):
            await asyncio.sleep(0)
            if channel.exiting:
                raise Refused(404, "CHANNEL_NOT_FOUND")
        if not dry_run:
            self._broker.checkpoint_topic(channel.topic, now=self._now())
            self._schedule_flush()
        found = cancellation.cancelled
        ids = [channel.topic.id_of(sequence) for sequences in found.values() for sequence in sequences]
        answer = {"topic": topic, "channel": name, "dry_run": dry_run, "cancelled": len(ids), "ids": ids}
        return value(answer | {"message_ids": list(found), "refused": cancellation.refused})

    async def _chosen(
        self, channel: Channel, document: Mapping[str, Any], limit: int, refused: dict[str, str]
    ) -> tuple[list[int], int | None]:
        """Return the sequences that a claim means, and where the next one starts.

        `refused` gets the ids that the claim names and cannot take, each with the reason.
        """
        for key in ("ids", "sequences", "state", "holder"):
            if key in document and document[key] in (None, ""):  # an empty shell variable must not take everything
                raise Refused(400, f"{key}: a value expected; leave it out for any")
        named_ones = _named(channel, document, refused)
        states = _states(document.get("state"))
        holder = document.get("holder")
        min_idle = whole_number(document, "min_idle", 0) * _MILLISECOND
        if named_ones is None and holder is None and not min_idle and "state" not in document:
            raise Refused(400, "which messages: ids, sequences, holder, min_idle or state expected")
        if holder is not None and not isinstance(holder, str):
            raise Refused(400, "holder: the name of a consumer expected")
        if named_ones is not None:
            looked, following = sorted(set(named_ones)), None
        else:
            scan = PendingScan(
                channel.ledger,
                most=_LOOKED * limit,
                states=states if not min_idle else {State.IN_FLIGHT},
                holder=holder,
                after=whole_number(document, "after", -1, least=-1),
            )
            await _finished(scan)
            looked = scan.found
            following = looked[-1] if len(looked) == scan.most else None
        chosen: list[int] = []
        for number, sequence in enumerate(looked):
            if number % (_STEP * _LOOKED) == 0:
                await asyncio.sleep(0)
            entry = entry_of(channel.ledger, sequence, now=self._now())
            if reason := _reason_against(entry, states, min_idle, holder):
                if named_ones is not None:
                    refused[channel.topic.id_of(sequence)] = reason
                continue
            if len(chosen) == limit:
                following = chosen[-1]
                break
            chosen.append(sequence)
        if len(looked) > _STEP * _LOOKED:  # another claimer may have been faster
            entries = [(each, entry_of(channel.ledger, each, now=self._now())) for each in chosen]
            chosen = [each for each, entry in entries if not _reason_against(entry, states, min_idle, holder)]
        return chosen, following


async def _finished(scan: PendingScan) -> None:
    while not scan.step():  # noqa: ASYNC110 - it does not wait, it lets others have their turn
        await asyncio.sleep(0)


def _shown(channel: Channel, entry: Entry, bodies: bool) -> dict[str, Any]:
    """Return an entry as JSON."""
    skew = channel.topic.skew
    found: dict[str, Any] = {
        "sequence": entry.sequence,
        "id": channel.topic.id_of(entry.sequence),
        "state": entry.state.value,
        "holder": entry.holder or None,
        "idle": entry.idle // _MILLISECOND if entry.idle >= 0 else None,
        "deadline": times.show(entry.deadline + skew) if entry.deadline is not None else None,
        "deliveries": entry.deliveries,
        "failures": entry.failures,
        "error": channel.ledger.failures.error(entry.sequence) or None,
    }
    try:
        frame = channel.frame(entry.sequence)
    except ReadFailed:
        frame = None
    found["size"] = None if frame is None else len(frame) - kernel.HEAD
    if bodies and frame is not None:
        found |= body_fields(frame[kernel.HEAD :])
    return found


def _reason_against(entry: Entry | None, states: Collection[State], min_idle: int, holder: str | None) -> str:
    """Return why a claim does not take a message; the empty string when it does."""
    if entry is None:
        return "not pending: finished, a dead letter, or not yet delivered"
    if entry.state not in states:
        return f"the state is {entry.state.value}"
    if holder is not None and entry.holder != holder:
        return f"the holder is {entry.holder}" if entry.holder else "nobody holds it"
    return "it was delivered less than min_idle ago" if min_idle and entry.idle < min_idle else ""


def _named(channel: Channel, document: Mapping[str, Any], refused: dict[str, str]) -> list[int] | None:
    """Return the sequences that a claim names by itself; None when it does not. `refused` gets ids of other nodes."""
    ids, sequences = document.get("ids"), document.get("sequences")
    if ids is None and sequences is None:
        return None
    for key, given, kind in (("ids", ids, str), ("sequences", sequences, int)):
        good = given is None or (isinstance(given, list) and len(given) <= MAX_ENTRIES)
        if not good or not all(isinstance(each, kind) and not isinstance(each, bool) for each in given or ()):
            raise Refused(400, f"{key}: a list of at most {MAX_ENTRIES} {key} expected")
    for each in sequences or ():
        if each < 0:
            raise Refused(400, f"sequences: {str(each)[:_SHOWN]} is no sequence: whole numbers from 0 on expected")
    found: list[int] = list(sequences or ())
    for each in ids or ():
        try:
            node, sequence = message_ids.decode(each.encode("utf-8", "replace"))
        except ValueError:
            raise Refused(
                400, f"ids: {each[:_SHOWN]!r} is no id of a message: 16 digits from 0 to f expected"
            ) from None
        if node == channel.topic.log.node:
            found.append(sequence)
        else:
            refused[each] = OTHER_NODE
    return found


def _states(name: Any) -> Collection[State]:
    if name in (None, ""):
        return SHOWN
    for state in SHOWN:
        if state.value == name:
            return (state,)
    raise Refused(400, f"state: one of {', '.join(state.value for state in SHOWN)} expected")
