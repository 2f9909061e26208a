"""Connections of NSQ's clients whose runs of publishes and FINs do without the parser.

A run is whole commands of one kind and nothing else. The set of sockets recognises those of all connections together;
a connection that is in no such set recognises its own publishes.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from lapwing.errors import LapwingError, ProtocolError
from lapwing.net.polled import PolledTransport
from lapwing.nsqd.stream import Stream

if TYPE_CHECKING:
    from lapwing.broker.topic import Topic
    from lapwing.net.polled import Publishes
    from lapwing.nsqd.listener_context import ListenerContext
    from lapwing.sessions.nsq import Session


class RunConnection(Stream):
    """The part of a connection that takes runs."""

    _context: ListenerContext
    _session: Session
    _at_rest = False  # what comes next may be a run

    @property
    @abstractmethod
    def _is_plain(self) -> bool:
        """Whether bytes come as they are, and no command is half received or waits."""

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client; a run of publishes does without the parser."""
        if self._at_rest and not (self._ending or self._session.doomed):
            now = self._clock.now()
            if self._session.publish_run(data, now=now):
                self._timer.last_command = now
                self._turn.add(self)
                return
        super().data_received(data)

    def _digest(self) -> None:
        super()._digest()
        self._at_rest = not self._behind and self._is_plain
        transport = self._transport
        if isinstance(transport, PolledTransport):
            ordinary = self._at_rest and not (self._ending or self._session.doomed)
            transport.publishes = self._expected() if ordinary else None

    def _expected(self) -> Publishes | None:
        """Return the place for what this client is expected to send next, and which needs no parser."""
        context, session = self._context, self._session
        channel, run = session.finishing, session.run
        if channel is not None and context.finish_runs is not None:
            return context.finish_runs.finishes(channel)
        return None if run is None or context.publish_runs is None else context.publish_runs.publishes(*run)

    def published(self, topic: Topic, messages: int, commands: int, now: int) -> None:
        """Answer publishes that were taken together with those of other connections."""
        session, transport = self._session, self._transport
        self._timer.last_command = now
        answer, replies = session.published(topic, messages) * commands, session.replies
        if replies.ready or replies.waiting or self._blocked or self._unannounced:
            replies.add(answer)
            self._turn.add(self)
        elif isinstance(transport, PolledTransport) and not self._ending:
            transport.direct, transport.published, transport.timer = True, session.publish_counts, self._timer
            transport.write(answer)

    def publish_failed(self, word: str, error: LapwingError) -> None:
        """Refuse publishes that were taken together with those of other connections."""
        self._session.publish_failed(word, error)
        self._turn.add(self)

    def finished(self, block: bytes, now: int) -> None:
        """Carry out a run of FINs that was taken together with those of other connections."""
        session = self._session
        if self._ending or session.doomed:
            return
        self._timer.last_command = now
        try:
            session.finish_run(block, now=now)
        except ProtocolError as error:
            session.refuse(error)
        if session.replies.ready or session.doomed:
            self._turn.add(self)
