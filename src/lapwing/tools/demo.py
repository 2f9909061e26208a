"""Sample traffic: a shop whose orders are billed, shipped and counted, by NSQ clients and Redis clients on one topic.

Some orders fail: a declined card works at the third attempt, a locked card fails until the broker gives the order up.
Such a dead letter can be sent back; the bank has unlocked the card by then.
"""

import argparse
import asyncio
import json
import logging
import math
import random
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

from lapwing import Admin, Consumer, LetterFilter, Message, NothingThere, Producer
from lapwing.client.errors import ClientError
from lapwing.client.message import Reject, Requeue
from lapwing.errors import LapwingError
from lapwing.tools.program import Signals, run
from lapwing.tools.redis_client import RedisServer
from lapwing.wire.resp.errors import ErrorReply

log: Final = logging.getLogger("lapwing.demo")

ORDERS: Final = "orders"
PAYMENTS: Final = "payments"
REMINDERS: Final = "reminders"
GOODS: Final = ("kettle", "lamp", "notebook", "umbrella", "radio", "teapot", "compass")
COUNTRIES: Final = ("NL", "DE", "FR", "PL", "SE", "IT")
ANALYTICS: Final = "analytics"  # the channel that a Redis client consumes
DEAD: Final = f"{ORDERS}.billing.dead"
BILLING: Final = {"max_attempts": 5, "retry_first": "1s"}  # settings of the channel: five attempts within 15 s
_CARD_DECLINED: Final = 0.02  # share of orders whose payment fails twice
_CARD_LOCKED: Final = 0.0015  # share of orders whose payment fails for a minute: about four a minute
_UNLOCKED: Final = 60.0  # s after the order
_KIOSK: Final = 0.2  # share of orders that a Redis client publishes
_OFFICE: Final = 30.0  # s between looks at dead letters
_LEFT: Final = "3m"  # the office sends dead letters back that are older
_MANY: Final = 10_000  # dead letters that are looked at
_BLOCK: Final = 2000  # ms that a read of the Redis client waits
_PAUSE: Final = 1.0  # s before a server that is away is tried again


class CardDeclined(Exception):
    """The bank refuses the payment."""


class CardLocked(Exception):
    """The bank refuses every payment with this card for now."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of every nsqd."""

    tcp: list[str]
    http: list[str]
    redis: list[str]


class Shop:
    """Producers of orders, and the departments that consume them."""

    def __init__(
        self, nsqds: Addresses, rate: float, *, without: frozenset[str] = frozenset(), seed: int | None = None
    ) -> None:
        """`without` names channels that nobody consumes."""
        self._nsqds = nsqds
        self._rate = rate
        self._without = without
        self._dice = random.Random(seed)
        self._number = int(time.time() * 1000)
        self._producer = Producer(nsqds.tcp, client_id="demo-shop")
        self._admin = Admin(nsqds.http)

    async def run(self, stop: asyncio.Event) -> None:
        """Publish and consume until `stop`; wait for an nsqd that is away."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._admin.close)
            await stack.enter_async_context(self._producer)
            await self.set_up()
            for topic, channel, handler, hands in (
                (ORDERS, "billing", self.bill, 8), (ORDERS, "shipping", self.ship, 8),
                (PAYMENTS, "ledger", self.book, 2), (REMINDERS, "mail", self.remind, 1),
            ):
                if channel in self._without:
                    continue
                await stack.enter_async_context(
                    Consumer(topic, channel, handler, nsqd=self._nsqds.tcp, concurrency=hands, max_in_flight=4 * hands,
                             client_id=f"demo-{channel}", max_attempts=0, max_backoff_duration=0.0, stop_timeout=2.0)
                )
            tasks = [asyncio.create_task(self._sell()), asyncio.create_task(self._keep_office())]
            for redis in self._nsqds.redis:
                tasks.append(asyncio.create_task(again(redis, self._sell_at_kiosk)))
                if ANALYTICS not in self._without:
                    tasks.append(asyncio.create_task(again(redis, self.count)))
            await stop.wait()
            for task in tasks:
                task.cancel()

    async def set_up(self) -> None:
        """Create the channels, and have the broker give orders up that billing fails at."""
        for topic, *channels in ((ORDERS, "billing", "shipping"), (PAYMENTS, "ledger"), (REMINDERS, "mail")):
            await self._admin.create(topic, *channels)
        await self._admin.change_settings(ORDERS, "billing", **BILLING)

    # ---- selling ----

    async def _sell(self) -> None:
        started = time.monotonic()
        while True:
            # in small lots, at a varying rate, so that charts show something
            tide = _tide(time.monotonic() - started)
            lot = [self.order() for _ in range(max(1, round(self._rate * (1 - _KIOSK) * tide / 10)))]
            try:
                await self._producer.publish_many(ORDERS, lot, timeout=10)
            except ClientError as error:
                log.warning("no orders for a moment: %s", error)
                await asyncio.sleep(1)
            await asyncio.sleep(len(lot) / (self._rate * (1 - _KIOSK) * tide))

    async def _sell_at_kiosk(self, server: RedisServer) -> None:
        """Publish orders as a Redis client."""
        pause = len(self._nsqds.redis) / (self._rate * _KIOSK)
        while True:
            await server.ask("XADD", ORDERS, "*", "data", self.order())
            await asyncio.sleep(pause * self._dice.uniform(0.5, 1.5))

    def order(self) -> bytes:
        """Return a new order."""
        self._number += 1
        roll = self._dice.random()
        order: dict[str, Any] = {
            "order": self._number,
            "at": round(time.time(), 3),
            "customer": f"c{self._dice.randrange(5000):04d}",
            "country": self._dice.choice(COUNTRIES),
            "items": [{"sku": self._dice.choice(GOODS), "quantity": self._dice.randrange(1, 4)}
                      for _ in range(self._dice.randrange(1, 4))],
            "total": round(self._dice.lognormvariate(3.5, 0.8), 2),
        }
        if roll < _CARD_LOCKED:
            order["card"] = "locked"
        elif roll < _CARD_LOCKED + _CARD_DECLINED:
            order["card"] = "declined"
        return json.dumps(order).encode()

    async def bill(self, message: Message) -> None:
        """Charge the card. The broker tries again what fails, and gives it up after five failures."""
        order = _order(message.body)
        card = order["card"]
        await asyncio.sleep(self._dice.uniform(0.001, 0.01))
        if card == "declined" and message.attempts < 3:
            raise CardDeclined("the bank declines the card")
        if card == "locked" and time.time() < order["at"] + _UNLOCKED:
            raise CardLocked("the card is locked for a minute")  # the same text each time: nsqadmin counts by error
        payment = {"order": order["order"], "amount": order["total"], "at": round(time.time(), 3)}
        await self._producer.publish(PAYMENTS, json.dumps(payment).encode())
        if self._dice.random() < 0.05:
            await self._producer.publish(REMINDERS, json.dumps(payment).encode(), defer=self._dice.uniform(10, 60))

    async def ship(self, message: Message) -> None:
        """Ship the goods, which are sometimes out of stock."""
        await asyncio.sleep(self._dice.uniform(0.005, 0.05))
        if message.attempts == 1 and self._dice.random() < 0.02:
            raise Requeue(5.0, backoff=False)

    async def count(self, server: RedisServer) -> None:
        """Count orders as a consumer of a Redis group."""
        try:
            await server.ask("XGROUP", "CREATE", ORDERS, ANALYTICS, "$", "MKSTREAM")
        except ErrorReply as error:
            if not str(error).startswith("BUSYGROUP"):
                raise
        start = "0"  # first the orders that it held when it was stopped
        while True:
            read = "XREADGROUP", "GROUP", ANALYTICS, "demo-analytics", "COUNT", 100, "BLOCK", _BLOCK
            found = await server.ask(*read, "STREAMS", ORDERS, start)
            ids = [entry[0] for entry in found[0][1]] if found else []
            if ids:
                await server.ask("XACK", ORDERS, ANALYTICS, *ids)
            else:
                start = ">"

    async def book(self, message: Message) -> None:
        """Book the payment."""
        await asyncio.sleep(0.001)

    async def remind(self, message: Message) -> None:
        """Send a mail."""
        await asyncio.sleep(0.01)

    async def _keep_office(self) -> None:
        """Send dead letters back that nobody else has dealt with for a while."""
        while True:
            await asyncio.sleep(_OFFICE)
            try:
                await self.send_back()
            except NothingThere:
                log.debug("no order was given up yet")
            except LapwingError as error:
                log.info("not all dead letters are sent back: %s", error)

    async def send_back(self) -> None:
        """Send back the orders that failed too often. One that fails again waits for a person."""
        old = LetterFilter(reason="attempts", until=_LEFT)
        found = await self._admin.dead_letters(DEAD, old, count=_MANY, bodies=False)
        for node, letters in found.answers.items():
            if first := [letter.sequence for letter in letters.letters if letter.count == 1]:
                await self._admin.only(node).redrive(DEAD, LetterFilter(sequences=first))


def _order(body: bytes) -> dict[str, Any]:
    """Return the order in a message. Raises `Reject` for a message that others have published to the topic."""
    try:
        order = json.loads(body)
        return {"card": "good", **order, "order": int(order["order"]), "at": float(order["at"]),
                "total": float(order["total"])}  # fmt: skip
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        wrong = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise Reject("no order of the demo's shop", wrong) from error


async def again(address: str, work: Callable[[RedisServer], Awaitable[None]]) -> None:
    """Do the work of a Redis client, and again whenever the server was away."""
    while True:
        try:
            server = await RedisServer.open(address)
            try:
                await work(server)
            finally:
                await server.close()
        except LapwingError as error:
            log.warning("%s: %s", address, error)
        await asyncio.sleep(_PAUSE)


def _tide(seconds: float) -> float:
    """Return the load as a factor of the average, 0.5 to 1.5, with a period of two minutes."""
    return 1.0 + 0.5 * math.sin(seconds * math.tau / 120)


def _without_trace(record: logging.LogRecord) -> bool:
    """Keep one line of the failures of handlers, which are meant."""
    record.exc_info = None
    return True


def main() -> None:
    """Run the demo; `lapwing up --demo` starts it."""
    options = argparse.ArgumentParser(description=__doc__)
    for kind in ("tcp", "http", "redis"):
        options.add_argument(f"--nsqd-{kind}-address", action="append", default=[], help="may be repeated")
    options.add_argument("--rate", type=float, default=40.0, help="orders a second, on average")
    options.add_argument("--without", action="append", default=[], metavar="CHANNEL", help="leave its consumer out")
    chosen = options.parse_args()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger().handlers[0].addFilter(_without_trace)
    nsqds = Addresses(chosen.nsqd_tcp_address, chosen.nsqd_http_address, chosen.nsqd_redis_address)

    async def sell(signals: Signals) -> int:
        await Shop(nsqds, chosen.rate, without=frozenset(chosen.without)).run(signals.stop)
        return 0

    try:
        run(sell)
    except LapwingError as error:
        sys.exit(f"demo: {error}")


if __name__ == "__main__":
    main()
