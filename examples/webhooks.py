"""FastAPI takes web hooks in, a worker handles them later: uvicorn webhooks:service (in this folder)

The sender gets 200 once nsqd has confirmed, and 503 while none can be reached, so that it tries again.

    curl -d '{"event": "paid", "invoice": 7}' http://127.0.0.1:8000/hooks/payments
"""

import json

from fastapi import FastAPI, HTTPException, Request

from lapwing import App, ClientError

app = App()
service = FastAPI(lifespan=app.lifespan)


@service.post("/hooks/{source}")
async def take(source: str, request: Request) -> None:
    try:
        await app.publish("hooks", {"source": source, "body": (await request.body()).decode()}, timeout=5)
    except ClientError as error:
        raise HTTPException(503, str(error)) from error


@app.consumer("hooks", "worker", concurrency=10, max_attempts=5, retry_first="1s")
async def handle(hook: dict[str, str]) -> None:
    print(hook["source"], json.loads(hook["body"]), flush=True)  # what does not parse fails, and is tried again
