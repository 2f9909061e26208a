"""Orders that are tried again, and dead letters that are sent back: python examples/orders.py

One card is refused for good, one only at the first attempt. The broker counts failures, waits in between, and gives up
after three; the dead letter names the error. Then the card is replaced, and the order is sent back to its channel.
"""

import asyncio
import json
import sys

from lapwing import Consumer, Message, Producer, Reject
from lapwing.client.http import DaemonHttp

DEAD = "orders.billing.dead"
replaced: set[int] = set()
paid = asyncio.Event()  # order 3 is paid


async def bill(message: Message) -> None:
    order = json.loads(message.body)
    if "card" not in order:
        raise Reject("no card")  # no use in trying again: a dead letter at once
    if order["card"] == "expired" and order["id"] not in replaced:
        raise ValueError(f"the card of order {order['id']} has expired")
    if order["card"] == "declined" and message.attempts == 1:
        raise ValueError(f"the bank declines order {order['id']}")
    print(f"order {order['id']} is paid at attempt {message.attempts}", flush=True)
    if order["id"] == 3:
        paid.set()


async def main(nsqd: str = "127.0.0.1:4150", nsqd_http: str = "127.0.0.1:4151") -> None:
    http = DaemonHttp()
    await http.post(nsqd_http, "/topic/create", {"topic": "orders"})
    await http.post(nsqd_http, "/channel/create", {"topic": "orders", "channel": "billing"})
    place, settings = {"topic": "orders", "channel": "billing"}, {"max_attempts": 3, "retry_first": "200ms"}
    await http.call("PATCH", nsqd_http, "/channel/settings", place, document=settings)
    async with Producer(nsqd) as producer, Consumer("orders", "billing", bill, nsqd=nsqd):
        orders = [{"id": 1, "card": "good"}, {"id": 2, "card": "declined"}, {"id": 3, "card": "expired"}, {"id": 4}]
        await producer.publish_many("orders", [json.dumps(order).encode() for order in orders])
        letters = []
        while len(letters) < 2:
            await asyncio.sleep(0.2)
            topics = (await http.get(nsqd_http, "/dead"))["topics"]
            letters = (await http.get(nsqd_http, "/dead/letters", {"topic": DEAD}))["letters"] if topics else []
        for letter in letters:
            print(f"given up: {letter['body']}: {letter['reason']} {letter['error']}", flush=True)
        replaced.add(3)
        document = {"filter": {"reason": "attempts"}}
        await http.call("POST", nsqd_http, "/dead/redrive", {"topic": DEAD}, document=document)
        await paid.wait()
    await http.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
