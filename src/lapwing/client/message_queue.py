"""Messages that wait for a program that iterates over a consumer."""

import asyncio
from collections import deque

from lapwing.client.message import Message


class MessageQueue:
    """Messages that no reader has taken yet, and readers that wait for one."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._readers: deque[asyncio.Future[None]] = deque()

    def put(self, batch: list[Message]) -> None:
        """Add messages."""
        self._messages.extend(batch)
        if self._readers:
            self.wake()

    def take(self) -> Message | None:
        """Return the next message that is not answered yet, or None."""
        while self._messages:
            message = self._messages.popleft()
            if message._source is not None:
                return message
        return None

    async def wait(self) -> None:
        """Return when messages may have come."""
        reader = asyncio.get_running_loop().create_future()
        self._readers.append(reader)
        await reader

    def wake(self) -> None:
        """Let every waiting reader look again."""
        while self._readers:
            reader = self._readers.popleft()
            if not reader.done():
                reader.set_result(None)

    def release(self) -> None:
        """Give all messages back."""
        while self._messages:
            self._messages.popleft().release()
