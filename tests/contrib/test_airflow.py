"""The trigger for Airflow, on a stub of Airflow's classes: Airflow itself would be a hundred packages."""

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import daemons
from lapwing import Producer, SyncAdmin
from lapwing.contrib import airflow as provider


class Base:
    """Airflow's base of triggers, providers and producers."""

    def __init__(self, **kwargs: Any) -> None:
        assert not kwargs


class Event:
    """Airflow's event of a trigger."""

    def __init__(self, payload: Any) -> None:
        self.payload = payload


@pytest.fixture
def triggers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    names = {
        "airflow.providers.common.messaging.providers.base_provider": {"BaseMessageQueueProvider": Base},
        "airflow.triggers.base": {"BaseEventTrigger": Base, "TriggerEvent": Event},
        "airflow.triggers.shared_stream": {"SharedStreamProducer": Base},
    }
    for name, members in names.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            path = ".".join(parts[:end])
            if path not in sys.modules:
                monkeypatch.setitem(sys.modules, path, ModuleType(path))
        vars(sys.modules[name]).update(members)
    yield importlib.import_module("lapwing.contrib.airflow.triggers")
    del sys.modules["lapwing.contrib.airflow.triggers"]


@pytest.fixture(scope="module")
def nsqd() -> Iterator[daemons.Daemon]:
    with daemons.nsqd() as daemon:
        yield daemon


def test_airflow_finds_the_provider(triggers: Any) -> None:
    (name,) = provider.get_provider_info()["queues"]

    assert name == f"{triggers.LapwingProvider.__module__}.LapwingProvider"
    assert triggers.LapwingProvider().trigger_class() is triggers.LapwingTrigger


async def test_an_event_is_a_message_which_is_finished_after_it(nsqd: daemons.Daemon, triggers: Any) -> None:
    async with Producer(nsqd.tcp) as producer:
        await producer.publish("orders", b"text", headers={"kind": "a"})
        await producer.publish("orders", b"\xff")
    path, arguments = triggers.LapwingTrigger("orders", nsqd=nsqd.tcp).serialize()
    events = triggers.LapwingTrigger(**arguments).run()
    first, second = (await anext(events)).payload, (await anext(events)).payload
    await events.aclose()

    assert path == "lapwing.contrib.airflow.triggers.LapwingTrigger"
    assert (first["body"], first["headers"]) == ("text", {"kind": "a"})
    assert second["body_base64"] == "/w=="
    again = triggers.LapwingTrigger(**arguments).run()
    assert (await anext(again)).payload["id"] == second["id"]  # nobody asked for the next one before it was closed
    await again.aclose()


async def test_a_shared_message_is_finished_once_its_event_is_stored(nsqd: daemons.Daemon, triggers: Any) -> None:
    with SyncAdmin(nsqd.http) as admin:
        admin.create("shared", "airflow")
        admin.change_settings("shared", "airflow", max_attempts=5)
    async with Producer(nsqd.tcp) as producer:
        for body in (b"stored", b"failed", b"rejected"):
            await producer.publish("shared", body)
    trigger = triggers.LapwingTrigger("shared", nsqd=nsqd.tcp)
    assert trigger.shared_stream_key() == triggers.LapwingTrigger("shared", nsqd=nsqd.tcp).shared_stream_key()
    producer = triggers.LapwingTrigger.create_shared_stream_producer(trigger.serialize()[1])
    stream = producer.open_stream()
    seen: list[tuple[str, int]] = []
    while len(seen) < 4:
        payload, message = await anext(stream)
        seen.append((payload["body"], payload["attempts"]))
        outcome = payload["body"] if payload["attempts"] == 1 else "stored"
        counts = {name: int(outcome == kind) for name, kind in
                  (("acked", "stored"), ("failed", "failed"), ("rejected", "rejected"))}  # fmt: skip
        await producer.advance([SimpleNamespace(broker_payload=message, outcome=SimpleNamespace(**counts))])
    await producer.aclose()

    assert seen == [("stored", 1), ("failed", 1), ("rejected", 1), ("failed", 2)]
    with SyncAdmin(nsqd.http) as admin:
        (counts,) = admin.counts("shared", "airflow").answers.values()
        assert (counts.waiting, counts.in_flight) == (0, 0)
        (letters,) = admin.dead_letters("shared.airflow.dead").answers.values()
        assert len(letters.letters) == 1
