"""Post a notification of every change to an endpoint, in the background."""

import asyncio
import json
import logging
import socket
import time
from typing import Any, Final

from lapwing.admin.access import Visitor
from lapwing.admin.actions import Action
from lapwing.net.client.asynchronous import HttpClient
from lapwing.net.client.message import HttpFailed
from lapwing.net.sockets.listen import join

log = logging.getLogger("nsqadmin")
_MOST_WAITING: Final = 1000


def notification(action: Action, visitor: Visitor, url: str, *, at: float, via: str) -> dict[str, Any]:
    """Return the notification of one change."""
    document: dict[str, Any] = {"action": action.kind, "topic": action.topic}
    document |= {key: value for key, value in (("channel", action.channel), ("node", action.node)) if value}
    document["timestamp"] = int(at)
    if visitor.basic_user:
        document["user"] = visitor.basic_user
    return document | {
        "remote_ip": join(visitor.peer, visitor.port),
        "user_agent": visitor.user_agent,
        "url": url,
        "via": via,
    }


class Notifier:
    """Queue notifications and post them one by one. An endpoint that cannot be reached is logged."""

    def __init__(self, endpoint: str, *, timeout: float = 5.0) -> None:
        self._endpoint = endpoint
        self._timeout = timeout
        self._waiting: asyncio.Queue[dict[str, Any]] = asyncio.Queue(_MOST_WAITING)

    def __call__(self, action: Action, visitor: Visitor, url: str) -> None:
        """Queue the notification of a change."""
        try:
            self._waiting.put_nowait(notification(action, visitor, url, at=time.time(), via=socket.gethostname()))
        except asyncio.QueueFull:
            log.error("%d notifications wait for %s; a notification is dropped", _MOST_WAITING, self._endpoint)

    async def run(self) -> None:
        """Post the queued notifications until cancelled."""
        async with HttpClient(connect_timeout=self._timeout, request_timeout=self._timeout) as client:
            while True:
                document = await self._waiting.get()
                try:
                    answer = await client.request(
                        "POST",
                        self._endpoint,
                        body=json.dumps(document).encode(),
                        headers={"Content-Type": "application/json"},
                    )
                except HttpFailed as error:
                    log.error("failed to notify %s of %s: %s", self._endpoint, document["action"], error)
                    continue
                if answer.status >= 300:
                    log.error(
                        "%s answered %d to the notification of %s", self._endpoint, answer.status, document["action"]
                    )
