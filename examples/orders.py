"""Orders that are tried again, and dead letters: lapwing run orders:app (in this folder), or python orders.py

    lapwing pub purchases '{"id": 2, "card": "declined"}'
    lapwing dead show purchases.billing.dead
"""

from dataclasses import dataclass

from lapwing import App, Message, Reject

app = App()


@dataclass
class Order:
    id: int
    card: str = ""


@app.consumer("purchases", "billing", concurrency=10, max_attempts=3, retry_first="200ms")
async def bill(order: Order, message: Message) -> None:
    if not order.card:
        raise Reject("no card")  # no use in trying again: a dead letter at once
    if order.card == "expired" or (order.card == "declined" and message.attempts == 1):
        raise ValueError(f"the card of order {order.id} is {order.card}")  # again after 0.2 s, and after 0.4 s
    print(f"order {order.id} is paid at attempt {message.attempts}", flush=True)


if __name__ == "__main__":
    app.run()
