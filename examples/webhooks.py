"""Take web hooks in: answer after the message is on disk, verify and work later. python examples/webhooks.py

Try it:  curl -d '{"event": "paid", "invoice": 7}' http://127.0.0.1:8080/hooks/payments
The sender gets 200 only when nsqd has confirmed, and 503 while no nsqd can be reached, so that it tries again.
"""

import asyncio
import json
import sys

from lapwing import Consumer, Message, Producer
from lapwing.client.errors import ClientError

LIMIT = 1 << 20  # bytes of a body


async def serve(producer: Producer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).decode("latin-1")
        method, path, _ = head.split("\r\n")[0].split(" ")
        lengths = [line.partition(":")[2] for line in head.split("\r\n") if line.lower().startswith("content-length:")]
        size = int(lengths[0]) if lengths else 0
        if method != "POST" or not path.startswith("/hooks/") or not 0 < size <= LIMIT:
            status = "400 Bad Request"
        else:
            hook = {"source": path.removeprefix("/hooks/"), "body": (await reader.readexactly(size)).decode()}
            await producer.publish("hooks", json.dumps(hook).encode(), timeout=5)
            status = "200 OK"
    except ClientError:
        status = "503 Service Unavailable"
    except (ValueError, EOFError, TimeoutError, asyncio.LimitOverrunError):
        status = "400 Bad Request"
    writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
    writer.close()


async def handle(message: Message) -> None:
    hook = json.loads(message.body)
    print(hook["source"], json.loads(hook["body"]), flush=True)  # what does not parse fails, and is tried again


async def main(nsqd: str = "127.0.0.1:4150", port: str = "8080") -> None:
    async with Producer(nsqd) as producer, Consumer("hooks", "worker", handle, nsqd=nsqd) as consumer:
        server = await asyncio.start_server(lambda r, w: serve(producer, r, w), "127.0.0.1", int(port))
        print("listening on port", server.sockets[0].getsockname()[1], flush=True)
        await consumer.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
