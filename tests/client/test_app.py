"""An application on the broker for tests, and on real servers."""

import asyncio
import contextlib
import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fastapi
import httpx
import pytest
from nsqd_double import NsqdDouble

import daemons
from lapwing import Admin, App, ClientError, ConfigError, Message, NodesFailed, Producer, Refused, SyncProducer
from lapwing.client.cluster import Node
from lapwing.client.handlers import BoundInProcess
from lapwing.testing import Broker
from lapwing.wire.nsq import commands as c


@dataclasses.dataclass
class Order:
    id: int
    card: str = "good"


class Opaque:
    """A class that no library knows how to decode into."""


@dataclasses.dataclass
class Sealed:
    content: Opaque


@pytest.fixture(scope="module")
def daemon() -> Iterator[daemons.Daemon]:
    with daemons.nsqd() as running:
        yield running


def settings_of(daemon: daemons.Daemon, topic: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{daemon.url}/channel/settings?topic={topic}&channel=c") as answer:
        found = json.load(answer)["settings"]
    return {name: each["value"] for name, each in found.items()}


async def test_each_handler_gets_what_its_parameters_ask_for():
    app, seen = App("127.0.0.1:1"), []

    @app.consumer("bytes", "c")
    async def first(body: bytes) -> None:
        seen.append(body)

    @app.consumer("both", "c")
    async def second(body: bytes, message: Message) -> None:
        seen.append((body, message.attempts))

    @app.consumer("orders", "c")
    async def third(order: Order, message: Message, producer: Producer, app: App) -> None:
        seen.append(order)
        await producer.publish("text", f"order {order.id}")
        await app.publish("message", order)

    @app.consumer("text", "c")
    def fourth(text: str, *, retries: int = 3) -> None:
        seen.append((text, retries))

    @app.consumer("message", "c")
    async def fifth(message: Message) -> None:
        seen.append((message.topic, message.headers["content-type"]))

    async with Broker().run(app) as shop:
        for topic in ("bytes", "both"):
            await app.publish(topic, b"x")
        await app.publish("orders", Order(7))
        outcomes = await shop.handle()

    assert seen == [b"x", (b"x", 1), Order(7), ("order 7", 3), ("message", "application/json")]
    assert [(each.topic, each.answer) for each in outcomes] == [
        (topic, "finished") for topic in ("bytes", "both", "orders", "text", "message")
    ]
    with pytest.raises(ClientError, match="does not run"):
        await app.publish("bytes", b"x")


async def test_handlers_may_be_methods_callables_and_partial_functions():
    app, seen = App("127.0.0.1:1"), []

    class Shop:
        async def bill(self, order: Order) -> None:
            seen.append(order)

        def __call__(self, order: Order, message: Message) -> None:
            seen.append(message.topic)

    def add(place: list[Any], body: Mapping[str, Any]) -> None:
        place.append(body["id"])

    app.consumer("method", "c")(Shop().bill)
    app.consumer("callable", "c")(Shop())
    app.consumer("partial", "c")(functools.partial(add, seen))
    async with Broker().run(app) as shop:
        for topic in ("method", "callable", "partial"):
            await app.publish(topic, {"id": 7})
        outcomes = await shop.handle()

    assert [each.answer for each in outcomes] == ["finished"] * 3, outcomes
    assert seen == [Order(7), "callable", 7]


async def test_settings_hold_and_a_body_that_does_not_decode_is_a_dead_letter_at_once():
    app, attempts = App("127.0.0.1:1"), []

    @app.consumer("orders", "billing", max_attempts=2, retry_first=60)
    async def bill(order: Order, message: Message) -> None:
        attempts.append(message.attempts)
        raise ValueError("declined")

    broker = Broker()
    async with broker.run(app) as shop:
        await app.publish("orders", Order(1))
        await app.publish("orders", {"id": "x"})
        first, undecodable = await shop.handle()
        assert await shop.advance(50) == []
        (last,) = await shop.advance(20)

    assert (first.answer, last.answer, attempts) == ("failed", "failed", [1, 2])
    assert (undecodable.answer, undecodable.reason) == ("rejected", "the body is no Order")
    assert "id" in undecodable.error
    assert broker.dead_letters("orders", "billing") == [b'{"id":"x"}', b'{"id":1,"card":"good"}']


def test_what_cannot_work_is_refused_when_it_is_declared():
    app = App("127.0.0.1:1")
    cases: list[tuple[Any, str]] = [
        (lambda: None, "expected a parameter"),
        (lambda body: None, "has no annotation"),
    ]

    def number(body: int) -> None: ...
    def two(body: bytes, other: str) -> None: ...
    def unknown(body: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821
    def keyword(*, body: bytes) -> None: ...
    def opaque(body: Sealed) -> None: ...
    def nested(body: dict[str, list[Sealed]]) -> None: ...
    async def endless(body: bytes) -> Any:
        yield body

    def lazy(body: bytes) -> Any:
        yield body

    cases += [
        (number, "number: a body cannot be decoded into int"),
        (two, "parameter other: expected one body"),
        (unknown, "annotations cannot be read"),
        (keyword, "parameter body: expected one body"),
        (5, "expected a function"),
        (opaque, "opaque: JSON cannot be decoded into Opaque"),
        (nested, "nested: JSON cannot be decoded into Opaque"),
        (endless, "endless is a generator: its body would never run"),
        (lazy, "lazy is a generator: its body would never run"),
    ]
    for handler, text in cases:
        with pytest.raises(ConfigError, match=text):
            app.consumer("t", "c")(handler)
    assert not app.declared
    with pytest.raises(ConfigError, match=r"no setting of a channel is called max_atempts"):
        app.consumer("t", "c", max_atempts=3)(lambda message: None)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="retry_first is '5', expected seconds or a text"):
        app.consumer("t", "c", retry_first="5")(lambda message: None)
    app.consumer("t", "c")(lambda message: None)
    with pytest.raises(ConfigError, match="t/c has a handler already"):
        app.consumer("t", "c")
    with pytest.raises(ConfigError, match="expected host:port"):
        App("nowhere")
    with pytest.raises(ConfigError, match="2 addresses for 1 of nsqd"):
        App("127.0.0.1:1", nsqd_http=["a:1", "b:2"])


@pytest.mark.parametrize(
    ("names", "nsqd", "lookupd"),
    [
        ({}, ["127.0.0.1:4150"], []),
        ({"LAPWING_NSQD_TCP": "a:1"}, ["a:1"], []),
        ({"LAPWING_LOOKUPD_HTTP": "b:2"}, [], ["b:2"]),
    ],
)
def test_addresses_that_are_not_given_come_from_the_environment(names, nsqd, lookupd, monkeypatch):
    for name in ("LAPWING_NSQD_TCP", "LAPWING_NSQD_HTTP", "LAPWING_LOOKUPD_HTTP"):
        monkeypatch.delenv(name, raising=False)
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    app = App()

    assert (app._nsqd, app._lookupd) == (nsqd, lookupd)


async def test_settings_of_an_operator_stay_and_are_reported(daemon, caplog):
    async def run(overwrite: bool = False, **settings: Any) -> dict[str, Any]:
        app = App(daemon.tcp, nsqd_http=daemon.http, overwrite_settings=overwrite)
        app.consumer("kept", "c", **settings)(lambda message: None)
        async with app:
            assert [each.connections for each in app.consumers] == [[daemon.tcp]]
        return settings_of(daemon, "kept")

    new = await run(max_attempts=3, retry_first=1.5, rate="100/s")
    again = await run(max_attempts=3, retry_first="1500ms")
    assert not caplog.records
    kept = await run(max_attempts=5)
    warning = caplog.records[-1].getMessage()
    changed = await run(overwrite=True, max_attempts=5)

    assert (new["max_attempts"], new["retry_first"], new["rate"]) == (3, "1.5s", "100/s")
    assert again == kept == new
    assert "max_attempts is 3 (set by: channel), and this program asks for 5: left as it is" in warning
    assert changed["max_attempts"] == 5
    with pytest.raises(Refused, match="settings of kept/c: burst needs a rate"):
        await run(overwrite=True, burst=3, rate="")


async def test_a_function_runs_at_its_times_on_the_clock_of_a_test():
    app = App()
    ran: list[tuple[str, str]] = []

    @app.schedule("every 5m", max_attempts=3)
    async def clean_up(tick: dict[str, str], message: Message) -> None:
        ran.append((message.headers["schedule-name"], message.headers["schedule-time"]))

    @app.schedule("0 9 * * *", topic="reports", name="daily", body={"kind": "daily"}, zone="Europe/Berlin")
    async def report(order: dict[str, str]) -> None:
        ran.append(("daily", order["kind"]))

    async with Broker().run(app) as shop:
        assert await shop.advance(299) == []
        await shop.advance(1)
        await shop.advance(24 * 3600)
    assert ran.count(("daily", "daily")) == 1
    assert len({time for name, time in ran if name == "clean-up"}) == 1 + 24 * 12


async def test_a_schedule_of_an_app_is_put_on_the_broker_and_its_function_runs(daemon):
    ran = asyncio.Event()
    app = App(daemon.tcp, nsqd_http=daemon.http)

    @app.schedule("every 1s", topic=f"ticks{os.getpid()}", name="often")
    async def often(tick: bytes) -> None:
        ran.set()

    for _ in range(2):  # the second start changes nothing
        async with app:
            await asyncio.wait_for(ran.wait(), 60)
            ran.clear()
    async with Admin(daemon.http) as admin:
        (found,) = (await admin.schedule("often")).answers.values()
        await admin.remove_schedule("often")
    assert (found.when, found.state) == ("every 1s", "active")


async def test_a_schedule_that_the_broker_refuses_ends_the_start(daemon):
    app = App(daemon.tcp, nsqd_http=daemon.http)
    app.schedule("61 * * * *", name="wrong")(print_tick)
    with pytest.raises(ClientError, match=r"schedule wrong: .*no cron expression"):
        await app.start()


@pytest.mark.parametrize(
    ("when", "text"), [("every 5", "the unit is missing"), ("now and then", "expected 'every 5m'"), ("", "expected")]
)
def test_times_that_cannot_be_are_refused_when_declared(when: str, text: str):
    with pytest.raises(ConfigError, match=text):
        App().schedule(when)


def test_two_schedules_on_one_topic_are_refused():
    app = App()
    app.schedule("every 5m", topic="t", name="one")(print_tick)
    with pytest.raises(ConfigError, match="topic t has a schedule already"):
        app.schedule("every 5m", topic="t", name="two")(print_tick)


async def print_tick(tick: bytes) -> None:
    print(tick)


async def test_an_app_without_settings_needs_no_http_api_and_runs_twice():
    app, seen = App(["127.0.0.1:1"]), asyncio.Event()
    entered: list[str] = []

    @contextlib.asynccontextmanager
    async def setup(started: App) -> Any:
        entered.append("in")
        yield
        assert not app.consumers
        entered.append("out")

    async with NsqdDouble() as nsqd:
        app = App(nsqd.address, setup=setup)

        @app.consumer("t", "c", concurrency=5)
        async def handle(body: bytes) -> None:
            seen.set()

        for _ in range(2):
            async with app:
                peer = await nsqd.subscriber(5)
                peer.deliver(b"x")
                await asyncio.wait_for(seen.wait(), 60)
                with pytest.raises(ClientError, match="runs already"):
                    await app.start()
                with pytest.raises(ClientError, match="late/c: the app runs already"):
                    app.consumer("late", "c")
                await app.publish("other", {"a": 1})  # a plain server gets no content-type
            seen.clear()
            await nsqd.until(lambda: not nsqd.live)

        assert nsqd.said(c.Pub) == [c.Pub("other", b'{"a":1}')] * 2
    assert entered == ["in", "out", "in", "out"]


async def test_the_first_publish_may_be_one_that_does_not_wait(daemon):
    app = App(daemon.tcp)
    async with app:
        await asyncio.gather(*(app.producer.submit("submitted", {"id": number}) for number in range(3)))

    async with Admin(daemon.http) as admin:
        assert (await admin.stats()).topics["submitted"].messages == 3


def test_an_app_runs_in_any_thread_and_ends_from_any(daemon):
    begun = threading.Event()

    @contextlib.asynccontextmanager
    async def setup(started: App) -> Any:
        begun.set()
        yield

    app = App(daemon.tcp, setup=setup)
    thread = threading.Thread(target=app.run, daemon=True)
    thread.start()
    assert begun.wait(60)
    app.exit()
    thread.join(60)

    assert not thread.is_alive()


async def test_a_server_without_settings_is_consumed_with_a_warning(caplog):
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        status, body = (b"404 Not Found", b'{"message":"NOT_FOUND"}') if b"settings" in head else (b"200 OK", b"")
        writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (status, len(body), body))
        writer.close()

    plain = await asyncio.start_server(answer, "127.0.0.1", 0)
    http = f"127.0.0.1:{plain.sockets[0].getsockname()[1]}"
    async with plain, NsqdDouble() as nsqd:
        app = App(nsqd.address, nsqd_http=http)
        app.consumer("t", "c", max_attempts=9, retry_first="200ms", retry_max=7200, burst=2)(lambda message: None)
        async with app:
            options = app.consumers[0].options
            assert (options.max_attempts, options.default_requeue_delay, options.max_requeue_delay) == (9, 0.2, 3600)
        async with Admin(http) as admin:
            with pytest.raises(NodesFailed, match="a plain NSQ server cannot do this"):
                await admin.at([Node("", "127.0.0.1", 0, 0, "", configured=http)]).settings("t", "c")

    assert "keeps no settings of channels: max_attempts holds in the client; retry_first holds" in caplog.text
    assert "burst has no effect" in caplog.text


async def test_settings_are_applied_again_to_a_channel_that_was_lost(daemon):
    app = App(daemon.tcp, nsqd_http=daemon.http)
    app.consumer("lost", "c", max_attempts=3)(lambda message: None)

    def applied() -> bool:
        try:
            return settings_of(daemon, "lost")["max_attempts"] == 3
        except urllib.error.HTTPError:  # not there yet
            return False

    async with app, Admin(daemon.http) as admin:
        await admin.delete("lost")
        await asyncio.to_thread(daemons.until, applied)


async def test_a_web_service_publishes_and_consumes(daemon):
    app, seen = App(daemon.tcp), asyncio.Queue()

    @app.consumer("web", "c")
    async def handle(order: Order) -> None:
        seen.put_nowait(order)

    service = fastapi.FastAPI(lifespan=app.lifespan)

    @service.post("/orders")
    async def order(id: int) -> None:
        await app.publish("web", Order(id))

    async with service.router.lifespan_context(service):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(service), base_url="http://shop") as client:
            assert (await client.post("/orders?id=5")).status_code == 200
        assert await asyncio.wait_for(seen.get(), 60) == Order(5)
    assert not app.consumers


PROGRAM = """
    import asyncio
    from lapwing import App

    app = App({tcp!r})

    @app.consumer("run", "c", run={run!r})
    {prefix}def handle(text: str) -> None:
        print("begun", text, flush=True)
        {wait}
        print("done", text, flush=True)

    if __name__ == "__main__":
        app.run()
"""


def program(daemon: daemons.Daemon, folder: Path, *, run: str = "auto", wait: str = "await asyncio.sleep(0.2)") -> None:
    prefix = "async " if wait.startswith("await") else ""
    text = textwrap.dedent(PROGRAM).format(tcp=daemon.tcp, run=run, wait=wait, prefix=prefix)
    (folder / "shop.py").write_text(text)


def start(folder: Path, *command: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip


RUN = ("-m", "lapwing.cli.main", "run", "shop:app")


@pytest.mark.parametrize(
    ("command", "number"), [(RUN, signal.SIGTERM), (RUN, signal.SIGINT), (("shop.py",), signal.SIGTERM)]
)
def test_a_signal_lets_handlers_finish(daemon, tmp_path, command, number):
    program(daemon, tmp_path)
    process = start(tmp_path, *command)
    with SyncProducer(daemon.tcp) as producer:
        producer.publish("run", "1")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun 1\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=60)

    assert (process.returncode, out) == (0, "done 1\n"), err
    assert f"{number.name}: stopping, handlers finish first" in err
    assert err.splitlines()[-1].endswith("stopped")


def test_a_signal_while_the_program_is_imported_ends_it_in_order(tmp_path):
    (tmp_path / "shop.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(600)\n")
    process = start(tmp_path, *RUN)
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.terminate()
    _, err = process.communicate(timeout=60)

    assert (process.returncode, err) == (0, "")


def test_a_second_signal_cancels_handlers_and_the_message_comes_again(daemon, tmp_path):
    program(daemon, tmp_path, wait="await asyncio.sleep(600)")
    process = start(tmp_path, *RUN)
    with SyncProducer(daemon.tcp) as producer:
        producer.publish("run", "2")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun 2\n"
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    while "stopping" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    program(daemon, tmp_path, run="processes", wait="pass")
    again = start(tmp_path, "shop.py")
    assert again.stdout is not None
    assert [again.stdout.readline() for _ in range(2)] == ["begun 2\n", "done 2\n"]
    again.terminate()
    again.communicate(timeout=60)

    assert (process.returncode, out) == (1, ""), err
    assert "SIGTERM again" in err
    assert again.returncode == 0


def test_changed_files_start_the_program_again(daemon, tmp_path):
    program(daemon, tmp_path, wait="await asyncio.sleep(0)")
    process = start(tmp_path, *RUN, "--reload")
    assert process.stderr is not None
    assert process.stdout is not None
    while "consuming run/c" not in process.stderr.readline():
        pass
    (tmp_path / "shop.py").write_text((tmp_path / "shop.py").read_text().replace('"begun"', '"changed"'))
    while "shop.py changed: starting again" not in process.stderr.readline():
        pass
    while "consuming run/c" not in process.stderr.readline():  # before, the program as it was may get the message
        pass
    with SyncProducer(daemon.tcp) as producer:
        producer.publish("run", "3")
    assert process.stdout.readline() == "changed 3\n"
    process.terminate()
    process.communicate(timeout=60)

    assert process.returncode == 0


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("shop", "expected a module and the name of an App in it"),
        ("shop:nothing", "shop has no nothing; is it shop:app?"),
        ("nowhere:app", "no module named nowhere"),
        ("shop:handle", "shop:handle is not a lapwing.App but a function"),
    ],
)
def test_a_target_that_is_no_app_is_one_line(tmp_path, target, text, monkeypatch):
    from lapwing.cli.run import _load

    (tmp_path / "shop.py").write_text("from lapwing import App\napp = App('127.0.0.1:1')\ndef handle(): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "shop", raising=False)

    with pytest.raises(ConfigError, match=text):
        _load(target)


def test_a_process_gets_neither_producer_nor_app():
    def handle(body: bytes, producer: Producer) -> None: ...

    with pytest.raises(ConfigError, match="where there is neither a producer nor an app"):
        BoundInProcess(handle, App("127.0.0.1:1"))


def test_a_type_checker_flags_a_body_that_cannot_be_decoded(tmp_path):
    (tmp_path / "shop.py").write_text(textwrap.dedent("""
        from dataclasses import dataclass
        from typing import Any, TypedDict
        from lapwing import App, Message, Producer

        app = App("127.0.0.1:4150")

        @dataclass
        class Order:
            id: int

        class Paid(TypedDict):
            id: int

        @app.consumer("a", "c")
        async def a(order: Order, message: Message, producer: Producer) -> None: ...
        @app.consumer("b", "c", max_attempts=3, retry_first="1s")
        def b(paid: Paid) -> None: ...
        @app.consumer("c", "c")
        def c(body: dict[str, Any]) -> None: ...
        @app.consumer("d", "c")
        async def d(message: Message) -> None:
            await app.publish("x", Order(1))
        @app.consumer("e", "c")
        def e(number: int) -> None: ...
        async def f() -> None:
            await app.publish("x", 5)
    """))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "shop.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip

    found = [line.split(": ")[0] for line in done.stdout.splitlines() if ": error:" in line]
    assert found == ["shop.py:24", "shop.py:27"], done.stdout
