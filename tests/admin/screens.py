"""The pictures of nsqadmin in the documents: `python tests/admin/screens.py` writes docs/screens/*.png.

`python tests/admin/screens.py DIRECTORY` writes each page at 1440 and 390 pixels, light and dark, to look at them all.
The cluster is a small made-up one, so that each page has something to show, and the same things each time.
"""

import json
import math
import random
import sys
import threading
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from admin_browser import chromium  # noqa: E402
from admin_fakes import Channel, FakeLookupd, FakeNsqd, Topic, client  # noqa: E402
from admin_stage import start_nsqadmin  # noqa: E402

from lapwing.admin.samples import EVERY, TOPIC, Rows, encode  # noqa: E402

SCREENS = HERE.parents[1] / "docs" / "screens"
# the pictures that the documents show
SHOWN = [("", "overview"), ("", "map"), ("", "dead"), ("", "past"), ("-dark", "messages"), ("-phone", "topic")]
WATCHED = 60  # seconds of traffic before the first picture, so that the charts have lines
TOPICS = [
    "clicks",
    "emails",
    "invoices",
    "orders",
    "pageviews",
    "payments",
    "sessions",
    "shipments",
    "signups",
    "webhooks",
]
CHANNELS = ["archive", "billing", "fraud", "lake", "mailer", "search"]
AGENTS = ["go-nsq/1.1.0", "pynsq/0.9.1", "lapwing/0.1.0", "nsqjs/0.13.0"]


def cluster() -> tuple[list[FakeNsqd], FakeLookupd]:
    """Three nodes with ten topics, some of them in trouble."""
    chance = random.Random(8)
    nodes = [FakeNsqd(f"nsq-{number}", lapwing=True, zone="abc"[number - 1]) for number in (1, 2, 3)]
    for name in TOPICS:
        chosen = chance.sample(CHANNELS, chance.randrange(2, 5)) if name != "orders" else ["archive", "billing", "lake"]
        for node in nodes:
            node.topics[name] = Topic(
                messages=chance.randrange(100_000, 900_000), channels={each: _channel(chance, each) for each in chosen}
            )
    nodes[0].topics["returns"] = Topic(depth=12_430, backend_depth=2_430, messages=12_430)
    nodes[1].topics["orders"].channels["old-report"] = Channel(depth=5_210, messages=90_000)
    nodes[2].topics["emails"].channels["mailer"] = Channel(paused=True, depth=310, messages=40_000, clients=[client(3)])
    for number in range(240):
        _order(nodes[number % 3].topics["orders"], number)
    nodes[0].topics[TOPIC] = Topic(channels={"read": Channel()})
    _past(nodes[0].topics[TOPIC])
    nodes[0].pipelines = _pipelines()
    for node in nodes[:2]:
        node.topics["orders.billing.dead"] = _dead_letters(chance)
        _hold(chance, node.topics["orders"].channels["billing"])
    lookupd = FakeLookupd(*nodes)
    lookupd.registered = {"returns-2025": {"archive"}, "trial": set()}
    return nodes, lookupd


def _channel(chance: random.Random, name: str) -> Channel:
    people = [
        client(
            chance.randrange(1, 90),
            user_agent=chance.choice(AGENTS),
            snappy=chance.random() < 0.4,
            tls=chance.random() < 0.5,
            tls_version="TLS1.3",
            in_flight_count=chance.randrange(20),
        )
        for _ in range(0 if name == "lake" else chance.randrange(1, 4))
    ]
    return Channel(
        depth=chance.choice([0, 0, 3, 41, 260]),
        in_flight=chance.randrange(30) if people else 0,
        messages=chance.randrange(100_000, 900_000),
        requeued=chance.randrange(60),
        timed_out=chance.randrange(9),
        clients=people,
        percentiles=[(0.99, chance.randrange(10**7, 10**9)), (0.5, chance.randrange(10**6, 10**7))],
    )


def _order(topic: Topic, number: int) -> None:
    body = {
        "order": 10_000 + number,
        "customer": {"id": number * 7 % 911, "vip": number % 5 == 0},
        "items": [{"sku": f"LW-{number * 13 % 400:03}", "quantity": number % 4 + 1}],
        "total": round(number * 3.17 % 250, 2),
    }
    topic.publish(json.dumps(body), headers={"trace": f"{number * 7919:08x}", "source": "shop"} if number % 2 else {})


def _ago(seconds: float) -> str:
    return datetime.fromtimestamp(time.time() - seconds, UTC).isoformat()


def _dead_letters(chance: random.Random) -> Topic:
    """A dead-letter topic: most letters died of the same error, and a redrive of some of them is under way."""
    errors = [
        (
            "attempts",
            "HTTPStatusError: 503 Service Unavailable (billing.py:88 in charge)\n  at https://pay.example/charge",
        ),
        ("attempts", "KeyError: 'customer' (billing.py:61 in handle)"),
        ("rejected", "the total is negative"),
    ]
    letters = []
    for sequence in range(24):
        reason, error = errors[0 if sequence % 3 else sequence % 4 // 2 + 1]
        order = {"order": 10_000 + sequence, "customer": {"id": sequence * 7 % 911}, "total": round(sequence * 3.17, 2)}
        letters.append(
            {
                "sequence": sequence, "id": f"{sequence:016x}", "topic": "orders", "channel": "billing",
                "reason": reason, "error": error, "failures": 5 if reason == "attempts" else 1, "deliveries": 5,
                "count": 1,
                "published": _ago(7300 - sequence), "first_failed": _ago(7200 - sequence * 9),
                "at": _ago(3600 - sequence * 97), "consumer": f"nsq:worker-{chance.randrange(1, 9)}:50412",
                "headers": {"trace": f"{sequence * 7919:08x}"}, "body": json.dumps(order),
            }
        )  # fmt: skip
    task = {"to": "channel", "filter": {"reason": "attempts"}, "rate": "5/s", "started": _ago(40), "state": "running"}
    task |= {"redriven": 118, "left": 24, "skipped": {}, "error": ""}
    return Topic(channels={"dead": Channel(depth=24, messages=180)}, letters=letters, redrive=task, messages=180)


def _hold(chance: random.Random, channel: Channel) -> None:
    """Some pending messages, and consumers with names."""
    for sequence in range(14):
        state = ("in_flight", "in_flight", "ready", "deferred")[sequence % 4]
        held = {"holder": f"nsq:worker-{sequence % 3}:50412", "idle": 1200 * sequence} if state == "in_flight" else {}
        error = "TimeoutError: pay.example did not answer in 5 s" if sequence % 5 == 1 else None
        channel.pending.append(
            {
                "sequence": 88_000 + sequence, "id": f"{sequence:016x}", "state": state, "holder": None, "idle": None,
                "deadline": _ago(-60 * sequence), "deliveries": 1 + sequence % 3, "failures": sequence % 3,
                "error": error, "size": 180 + sequence, **held,
            }
        )  # fmt: skip
    names = ("invoices-1", "invoices-2")
    channel.more["consumers"] = [
        {
            "name": name,
            "in_flight_count": 3 + index,
            "oldest_seconds": 12 + 1900 * index,
            "idle_seconds": 2 + 950 * index,
        }
        for index, name in enumerate(names)
    ]


def _past(topic: Topic) -> None:
    """A week of samples of `orders`: days and nights, and one bad afternoon."""
    chance = random.Random(7)
    now = int(time.time()) // EVERY
    for step in range(now - 7 * 86_400 // EVERY, now + 1):
        at = step * EVERY
        tide = 1.2 + math.sin((at % 86_400) / 86_400 * 2 * math.pi - 2) + chance.uniform(-0.06, 0.06)
        bad = 1 + 5 * math.exp(-(((at - now * EVERY + 200_000) / 6000) ** 2))
        rows: Rows = {("orders", ""): [100 * tide, 0.0, 90 * tide * bad**2]}
        for name, speed in (("billing", 1.0), ("archive", 0.3), ("lake", 0.0)):
            latency = [each / 1000 * speed * bad for each in (8, 40 * tide, 95 * tide)]
            failed = [0.8 * tide * speed * bad**1.4, 0.1 * tide * speed * bad**2]
            depth = 90 * speed * tide * bad**2
            rows["orders", name] = [100 * tide, 99 * tide, depth, 24.0, 0.0, *failed, *latency]
        topic.publish(encode(step, rows).decode())
        topic.log[-1]["timestamp"] = (at + 8) * 10**9


def _pipelines() -> list[dict[str, object]]:
    now = int(time.time() * 1000)
    running = {"kind": "archive", "state": "running", "error": None, "updated_ms": now, "rejected": 3, "late": 0}
    running |= {"batch_at_ms": now - 2_000}
    return [
        {
            **running,
            "name": "orders-lake",
            "topics": ["orders"],
            "channel": "lake",
            "batch_id": 421,
            "input_rate": 310.4,
            "processed_rate": 2400.0,
            "batch_ms": 834,
            "lag": 64,
        },
        {
            **running,
            "name": "clicks-per-minute",
            "kind": "rollup",
            "topics": ["clicks"],
            "channel": "lake",
            "batch_id": 88,
            "input_rate": 90.2,
            "processed_rate": 300.0,
            "batch_ms": 1834,
            "lag": 120,
            "updated_ms": now - 400_000,
        },
        {
            **running,
            "name": "emails-dead",
            "kind": "dead letters",
            "topics": ["emails"],
            "channel": "dead",
            "state": "failed",
            "batch_id": 3,
            "input_rate": 0,
            "processed_rate": 0,
            "batch_ms": 0,
            "lag": 12,
            "error": "LogIdentityChanged: the log of emails on nsq-2 was created anew; the checkpoint does not fit it",
        },
    ]


def traffic(nodes: list[FakeNsqd], ended: threading.Event) -> None:
    """Messages come and go until told to end."""
    chance = random.Random(5)
    number = 240
    while not ended.wait(0.25):
        swell = 1 + 0.4 * ((time.time() / 9) % 1)
        for node in nodes:
            for index, topic in enumerate(list(node.topics.values())):
                if not topic.channels:
                    topic.depth += 1
                    topic.messages += 1
                    continue
                came = int(chance.randrange(2, 8 + index % 4 * 9) * swell)
                topic.messages += came
                for channel in list(topic.channels.values()):
                    _work(chance, channel, came)
        number += 1
        _order(nodes[number % 3].topics["orders"], number)
        for pipeline in (nodes[0].pipelines[0], nodes[0].pipelines[2]):
            pipeline["updated_ms"] = int(time.time() * 1000)


def _work(chance: random.Random, channel: Channel, came: int) -> None:
    channel.messages += came
    if channel.paused or (not channel.clients and channel.depth > 1000):
        channel.depth += came
        return
    went = min(channel.depth + came, int(came * chance.uniform(0.85, 1.2)) + 1)
    channel.depth += came - went
    for each in channel.clients:
        each["finish_count"] += went // len(channel.clients)
        each["message_count"] += went // len(channel.clients)


def main(folder: str = "") -> None:
    """Write the pictures for the documents, or every page in every look into `folder`."""
    target = Path(folder) if folder else SCREENS
    target.mkdir(parents=True, exist_ok=True)
    nodes, lookupd = cluster()
    ended = threading.Event()
    threading.Thread(target=traffic, args=(nodes, ended), daemon=True).start()
    pages = {
        "overview": "/?span=300",
        "topics": "/topics",
        "topic": "/topics/orders?span=300",
        "channel": "/topics/orders/billing?span=300",
        "past": "/topics/orders/billing?span=604800",
        "nodes": "/nodes",
        "node": f"/nodes/{nodes[0].name}",
        "counter": "/counter?span=300",
        "lookup": "/lookup",
        "messages": f"/messages?topic=orders&message={nodes[0].name}%7C40",
        "dead": f"/dead?topic=orders.billing.dead&letter={nodes[0].name}%7C4",
        "dead-topics": "/dead",
        "map": "/map",
        "clients": "/clients",
        "pipelines": "/pipelines?name=emails-dead",
        "audit": "/audit",
    }
    with ExitStack() as stack:
        stack.callback(ended.set)
        admin = stack.enter_context(start_nsqadmin(f"--lookupd-http-address={lookupd.address}"))
        browser = stack.enter_context(chromium())
        wide = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light")
        for action in ("pause", "unpause"):
            wide.request.post(f"{admin.url}/api/topics/payments", data={"action": action})
        watching = wide.new_page()
        watching.goto(admin.url)
        watching.wait_for_timeout(WATCHED * 1000)
        watching.close()
        looks = {
            "": wide,
            "-dark": browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="dark"),
            "-phone": browser.new_context(
                viewport={"width": 390, "height": 844}, color_scheme="light", device_scale_factor=1 if folder else 2
            ),
            "-phone-dark": browser.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark"),
        }
        shots = [(look, name) for look in looks for name in pages] if folder else SHOWN
        for look, name in shots:
            page = looks[look].new_page()
            page.goto(admin.url + pages[name])
            page.wait_for_timeout(4500)
            path = target / f"{name}{look}.png"
            page.screenshot(path=str(path), full_page=bool(folder) or name == "past")
            page.close()
            print(path)


if __name__ == "__main__":
    main(*sys.argv[1:2])
