"""Tells an endpoint of every change, one after the other, in the background."""

import asyncio
import json
import logging
import socket
import time
from typing import Any, Final

from lapwing.admin.access import Visitor
from lapwing.admin.actions import Deed
from lapwing.net.http_client import HttpClient
from lapwing.net.http_message import HttpFailed
from lapwing.net.listen import join

log = logging.getLogger("nsqadmin")
_MOST_WAITING: Final = 1000


def notification(deed: Deed, visitor: Visitor, url: str, *, at: float, via: str) -> dict[str, Any]:
    """What is said of one deed."""
    said: dict[str, Any] = {"action": deed.kind, "topic": deed.topic}
    said |= {key: value for key, value in (("channel", deed.channel), ("node", deed.node)) if value}
    said["timestamp"] = int(at)
    if visitor.basic_user:
        said["user"] = visitor.basic_user
    return said | {
        "remote_ip": join(visitor.peer, visitor.port),
        "user_agent": visitor.user_agent,
        "url": url,
        "via": via,
    }


class Notifier:
    """Queues notifications and posts them; an endpoint that cannot be reached is logged, never a reason to stop."""

    def __init__(self, endpoint: str, *, timeout: float = 5.0) -> None:
        self._endpoint = endpoint
        self._timeout = timeout
        self._waiting: asyncio.Queue[dict[str, Any]] = asyncio.Queue(_MOST_WAITING)

    def __call__(self, deed: Deed, visitor: Visitor, url: str) -> None:
        """Announce a deed."""
        try:
            self._waiting.put_nowait(notification(deed, visitor, url, at=time.time(), via=socket.gethostname()))
        except asyncio.QueueFull:
            log.error("%d notifications wait for %s: one more is dropped", _MOST_WAITING, self._endpoint)

    async def run(self) -> None:
        """Post what is announced, until cancelled."""
        async with HttpClient(connect_timeout=self._timeout, request_timeout=self._timeout) as client:
            while True:
                said = await self._waiting.get()
                try:
                    answer = await client.request(
                        "POST",
                        self._endpoint,
                        body=json.dumps(said).encode(),
                        headers={"Content-Type": "application/json"},
                    )
                except HttpFailed as error:
                    log.error("failed to notify %s of %s: %s", self._endpoint, said["action"], error)
                    continue
                if answer.status >= 300:
                    log.error(
                        "%s answered %d to the notification of %s", self._endpoint, answer.status, said["action"]
                    )
