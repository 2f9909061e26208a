"""Sample traffic: orders that are billed, shipped and sometimes fail."""

import argparse
import asyncio
import json
import logging
import math
import random
import signal
import sys
import time
from contextlib import AsyncExitStack
from typing import Any, Final

from lapwing import Consumer, Message, Producer
from lapwing.client.errors import ClientError
from lapwing.client.message import Requeue

log: Final = logging.getLogger("lapwing.demo")

ORDERS: Final = "orders"
PAYMENTS: Final = "payments"
REMINDERS: Final = "reminders"
GOODS: Final = ("kettle", "lamp", "notebook", "umbrella", "radio", "teapot", "compass")
COUNTRIES: Final = ("NL", "DE", "FR", "PL", "SE", "IT")
_CARD_DECLINED: Final = 0.04  # share of orders whose payment fails once or twice
_HOPELESS: Final = 0.005  # share of orders that can never be billed


class Shop:
    """One producer of orders, and the departments that consume them."""

    def __init__(self, nsqds: list[str], rate: float, seed: int | None = None) -> None:
        self._nsqds = nsqds
        self._rate = rate
        self._dice = random.Random(seed)
        self._number = int(time.time() * 1000)
        self._producer = Producer(nsqds, client_id="demo-shop")

    async def run(self, stop: asyncio.Event) -> None:
        """Publish and consume until `stop`; wait for an nsqd that is away."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._producer)
            for topic, channel, handler, hands in (
                (ORDERS, "billing", self.bill, 8), (ORDERS, "shipping", self.ship, 8),
                (ORDERS, "analytics", self.count, 1), (PAYMENTS, "ledger", self.book, 2),
                (REMINDERS, "mail", self.remind, 1),
            ):
                await stack.enter_async_context(
                    Consumer(topic, channel, handler, nsqd=self._nsqds, concurrency=hands, max_in_flight=4 * hands,
                             client_id=f"demo-{channel}", max_attempts=0, max_backoff_duration=0.0, stop_timeout=2.0)
                )
            selling = asyncio.create_task(self._sell())
            await stop.wait()
            selling.cancel()

    async def _sell(self) -> None:
        started = time.monotonic()
        while True:
            # in small lots, at a varying rate, so that charts show something
            tide = _tide(time.monotonic() - started)
            lot = [self.order() for _ in range(max(1, round(self._rate * tide / 10)))]
            try:
                await self._producer.publish_many(ORDERS, lot, timeout=10)
            except ClientError as error:
                log.warning("no orders for a moment: %s", error)
                await asyncio.sleep(1)
            await asyncio.sleep(len(lot) / (self._rate * tide))

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
        if roll < _HOPELESS:
            order["card"] = "stolen"
        elif roll < _CARD_DECLINED:
            order["card"] = "declined"
        return json.dumps(order).encode()

    async def bill(self, message: Message) -> None:
        """Charge the card; a declined card is tried again later, a stolen one is given up after five attempts."""
        order = json.loads(message.body)
        card = order.get("card", "good")
        await asyncio.sleep(self._dice.uniform(0.001, 0.01))
        if (card == "declined" and message.attempts < 3) or (card == "stolen" and message.attempts < 5):
            log.info("order %s: card %s, attempt %d", order["order"], card, message.attempts)
            raise Requeue(2.0 * message.attempts, backoff=False)
        if card == "stolen":
            log.warning("order %s: given up", order["order"])
            return
        payment = {"order": order["order"], "amount": order["total"], "at": round(time.time(), 3)}
        await self._producer.publish(PAYMENTS, json.dumps(payment).encode())
        if self._dice.random() < 0.05:
            await self._producer.publish(REMINDERS, json.dumps(payment).encode(), defer=self._dice.uniform(10, 60))

    async def ship(self, message: Message) -> None:
        """Ship the goods, which are sometimes out of stock."""
        await asyncio.sleep(self._dice.uniform(0.005, 0.05))
        if message.attempts == 1 and self._dice.random() < 0.02:
            raise Requeue(5.0, backoff=False)

    async def count(self, message: Message) -> None:
        """Count the order."""

    async def book(self, message: Message) -> None:
        """Book the payment."""
        await asyncio.sleep(0.001)

    async def remind(self, message: Message) -> None:
        """Send a mail."""
        await asyncio.sleep(0.01)


def _tide(seconds: float) -> float:
    """Return the load as a factor of the average, 0.5 to 1.5, with a period of two minutes."""
    return 1.0 + 0.5 * math.sin(seconds * math.tau / 120)


async def _run(nsqds: list[str], rate: float) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await Shop(nsqds, rate).run(stop)


def main() -> None:
    """Run the demo; `lapwing up --demo` starts it."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--nsqd-tcp-address", action="append", required=True, help="may be repeated")
    options.add_argument("--rate", type=float, default=40.0, help="orders a second, on average")
    chosen = options.parse_args()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        asyncio.run(_run(chosen.nsqd_tcp_address, chosen.rate))
    except ClientError as error:
        sys.exit(f"demo: {error}")


if __name__ == "__main__":
    main()
