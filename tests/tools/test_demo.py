"""The demo's shop: which orders fail, and how often."""

import asyncio
import contextlib
import json
import time
from pathlib import Path

import pytest

from daemons import nsqd
from lapwing import Consumer, Producer
from lapwing.client.http import CallFailed, DaemonHttp
from lapwing.client.options import ClientSettings
from lapwing.testing import Broker
from lapwing.tools import demo, stack, try_next

NOWHERE = demo.Addresses(["127.0.0.1:1"], ["127.0.0.1:1"], ["127.0.0.1:1"])


def order(**more: object) -> bytes:
    return json.dumps({"order": 1, "at": time.time(), "customer": "c1", "total": 5.0, **more}).encode()


async def test_an_order_with_a_locked_card_is_given_up_after_five_failures_and_names_the_reason() -> None:
    broker = Broker()
    broker.channel(demo.ORDERS, "billing", **demo.BILLING)
    broker.publish(demo.ORDERS, order(card="locked"))
    bill = demo.Shop(NOWHERE, 40).bill
    errors: list[str] = []
    while not broker.dead_letters(demo.ORDERS, "billing"):
        errors += [outcome.error for outcome in await broker.handle(demo.ORDERS, "billing", bill)]
        broker.advance(20)

    assert len(errors) == 5
    assert all(error.startswith("CardLocked: the card is locked") for error in errors)


async def test_a_declined_card_works_at_the_third_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    broker.channel(demo.ORDERS, "billing", **demo.BILLING)
    broker.publish(demo.ORDERS, order(card="declined"))
    shop = demo.Shop(NOWHERE, 40, seed=1)
    monkeypatch.setattr(shop, "_producer", broker.producer())
    answers = []
    for _ in range(3):
        answers += [outcome.answer for outcome in await broker.handle(demo.ORDERS, "billing", shop.bill)]
        broker.advance(20)

    assert answers == ["failed", "failed", "finished"]
    assert len(broker.messages(demo.PAYMENTS)) == 1


@pytest.mark.parametrize("body", [b'{"id": 1}', b'{"order": 7}', b"[1]", b"not JSON", b"\xff"])
async def test_a_message_that_is_no_order_is_rejected_with_the_reason(body: bytes) -> None:
    broker = Broker()
    broker.channel(demo.ORDERS, "billing", **demo.BILLING)
    broker.publish(demo.ORDERS, body)

    (outcome,) = await broker.handle(demo.ORDERS, "billing", demo.Shop(NOWHERE, 40).bill)

    assert outcome.answer == "rejected"
    assert outcome.reason == "no order of the demo's shop"
    assert outcome.error
    assert len(broker.dead_letters(demo.ORDERS, "billing")) == 1


async def test_the_office_sends_a_letter_back_once_and_leaves_rejected_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_LEFT", "1ms")
    monkeypatch.setattr(demo, "BILLING", {"max_attempts": 1})
    with nsqd() as daemon:
        shop = demo.Shop(demo.Addresses([daemon.tcp], [daemon.http], []), 40)
        http = DaemonHttp()

        async def settled(wanted: list[int]) -> int:
            """Wait for letters given up so often each; return how many letters the last redrive returned."""
            found: list[int] = []
            for _ in range(600):
                with contextlib.suppress(CallFailed):  # before the first letter there is no dead-letter topic
                    answer = await http.get(daemon.http, "/dead/letters", {"topic": demo.DEAD})
                    found = sorted(letter["count"] for letter in answer["letters"])
                    (topic,) = (await http.get(daemon.http, "/dead"))["topics"]
                    task = topic["redrive"] or {"state": "none yet", "redriven": 0}
                    if found == wanted and task["state"] != "running":
                        return int(task["redriven"])
                await asyncio.sleep(0.02)
            raise AssertionError(f"{found}, not {wanted}")

        await shop.set_up()
        async with Producer(daemon.tcp) as producer:
            await producer.publish_many(demo.ORDERS, [b'{"id": 1}', order(card="locked", at=time.time() + 600)])
        patient: ClientSettings = {"max_attempts": 0, "max_backoff_duration": 0.0}
        async with Consumer(demo.ORDERS, "billing", shop.bill, nsqd=[daemon.tcp], **patient):
            await settled([1, 1])
            await shop.send_back()
            assert await settled([1, 2]) == 1
            await shop.send_back()

            assert await settled([1, 2]) == 1  # nothing else was sent back
        await http.aclose()


def test_suggestions_name_the_ports_in_use_and_only_what_runs(tmp_path: Path) -> None:
    usual = stack.Plan(tmp_path, "127.0.0.1", dict(stack.PORTS), admin=True, pipelines=("archive",), demo=True)
    other = stack.Plan(tmp_path, "127.0.0.1", {name: port + 1 for name, port in stack.PORTS.items()}, admin=False,
                       pipelines=(), demo=True)  # fmt: skip
    told, less = "\n".join(try_next.suggestions(usual)), "\n".join(try_next.suggestions(other))

    assert "http://127.0.0.1:4171/" in told
    assert "lapwing sql" in told
    assert "LAPWING_NSQD_HTTP" not in told
    assert "LAPWING_NSQD_HTTP='127.0.0.1:4152'" in less
    assert "redis-cli -p 6380" in less
    assert "lapwing sql" not in less


def test_suggestions_fit_eighty_columns(tmp_path: Path) -> None:
    lines = try_next.suggestions(stack.plan(Path("lapwing-data").absolute(), demo=True), room=80)

    for line in lines:
        assert len(line) <= 80 or line.startswith(("  export", "  lapwing sql")), line
    assert lines.index("  lapwing tail orders") == lines.index("  # follow the orders; nothing is consumed") + 1

