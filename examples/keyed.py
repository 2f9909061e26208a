"""The steps of each customer in order, also through a retry, and those of others meanwhile: python keyed.py"""

import asyncio

from lapwing import App, Message

app = App()
left = 4
done = asyncio.Event()


@app.consumer("carts", "billing", concurrency=10, order="key", key_from="header:key", retry_first="1s")
async def bill(step: str, message: Message) -> None:
    global left
    if step == "ann pays" and message.attempts == 1:
        raise ValueError("the bank does not answer")  # "ann gets" waits for the retry, "bob pays" does not
    print(step, flush=True)
    left -= 1
    done.set() if not left else None


async def main() -> None:
    async with app:
        for step in ("ann pays", "ann gets", "bob pays", "bob gets"):
            await app.publish("carts", step, headers={"key": step.split()[0]})
        await done.wait()


if __name__ == "__main__":
    asyncio.run(main())
