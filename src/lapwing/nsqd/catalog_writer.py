"""Write the catalog off the event loop: its syncs take milliseconds, and it may have a hundred thousand topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from lapwing.broker.broker import Broker
from lapwing.broker.keeper.keeper import catalog_entry
from lapwing.errors import LogError
from lapwing.log.catalog import Catalog, CatalogSave, encode_topic

_SLICE: Final = 500  # topics that are encoded before others have their turn
_SHARE: Final = 20  # a save that took a second is followed by the next one after so many


class CatalogWriter:
    """Saves the catalog whenever it has changed, one save at a time."""

    def __init__(self, broker: Broker, catalog: Catalog) -> None:
        self._broker = broker
        self._catalog = catalog
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="catalog")
        self._running: asyncio.Task[None] | None = None
        self._next = 0.0  # the loop's time before which no save begins

    def kick(self) -> None:
        """Save the catalog soon, unless that is under way."""
        loop = asyncio.get_running_loop()
        if (self._running is None or self._running.done()) and loop.time() >= self._next:
            self._running = loop.create_task(self._save())

    async def _save(self) -> None:
        broker, loop = self._broker, asyncio.get_running_loop()
        began = loop.time()
        saves = broker.keeper.begin_catalog()  # a change from here on asks for another save
        try:
            topics = await self._topics()
            if broker.keeper.catalog_saves != saves:
                return  # it was saved meanwhile, with changes that `topics` may lack
            save = CatalogSave(self._catalog, topics, broker.settings.policies.documents())
            await self._in_thread(save.write)
            save.finish()
            await self._in_thread(save.sync_name)
        except (LogError, OSError) as error:
            broker.keeper.fail_catalog(error)
        self._next = loop.time() + _SHARE * (loop.time() - began)

    async def _topics(self) -> list[str]:
        broker = self._broker
        lines = [encode_topic(topic.entry) for topic in broker.unopened.values()]
        topics = [topic for topic in broker.topics.values() if not topic.ephemeral]
        for first in range(0, len(topics), _SLICE):
            some = topics[first : first + _SLICE]
            lasting = [encode_topic(catalog_entry(topic)) for topic in some if not topic.exiting]
            if lasting:
                lines.append(",".join(lasting))  # one text, as very many small ones leave holes in the memory
            await asyncio.sleep(0)
        return lines

    async def _in_thread(self, call: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def stop(self) -> None:
        """Wait for the save under way, and end the thread."""
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)
        self._thread.shutdown(wait=True)
