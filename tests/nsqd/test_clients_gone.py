"""Clients that are gone leave nothing behind, although nobody looks for garbage."""

import asyncio
import weakref
from pathlib import Path
from typing import Any

import pytest
from doors import options, quiet

import lapwing.net.server.conversation
import lapwing.nsqd.doors.connection
from lapwing.net.event_loop import new_event_loop
from lapwing.nsqd.daemon import Daemon

REQUESTS = [
    b"  V2SUB t c\nRDY 1\nNOP\n",
    b"  V2PUB t\n\0\0\0\3one",
    b"  V2SUB t#ephemeral c#ephemeral\n",
    b"  V2IDENTIFY\n\0\0\0\x2d" + b'{"feature_negotiation":true,"deflate":true}'.ljust(0x2D),
    b"  V2WHAT\n",
    b"  V2MPUB t\n\0\0\1\0half",
    b"what",
    b"",
    b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /pub?topic=t HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\none",
    b"POST /pub?topic=t HTTP/1.1\r\nHost: a\r\nContent-Length: 300\r\n\r\nhalf",
    b"GET /ping HTTP/9\r\n\r\n",
]


def test_what_a_client_took_is_free_again_as_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_collector: None
) -> None:
    made, gone = asyncio.Event(), asyncio.Event()
    for protocol in (lapwing.nsqd.doors.connection.Connection, lapwing.net.server.conversation.HttpConnection):
        make = protocol.__init__

        def noted(connection: Any, *about: Any, make: Any = make) -> None:
            make(connection, *about)
            made.set()
            weakref.finalize(connection, gone.set)

        monkeypatch.setattr(protocol, "__init__", noted)

    async def talk() -> None:
        daemon = Daemon(
            options(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0", data_path=str(tmp_path)), quiet()
        )
        await daemon.start()
        assert daemon.tcp is not None
        assert daemon.http is not None
        try:
            for request in REQUESTS:
                port = daemon.http.port if b"HTTP" in request else daemon.tcp.port
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                async with asyncio.timeout(60):
                    await made.wait()
                    writer.write(request)
                    await asyncio.sleep(0.01)  # most have been answered by then; nothing depends on it
                    writer.transport.abort()
                    await gone.wait()
                made.clear()
                gone.clear()
        finally:
            await daemon.stop()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(talk())


def test_an_ephemeral_channel_is_gone_with_its_last_consumer(tmp_path: Path, no_collector: None) -> None:
    async def talk() -> None:
        daemon = Daemon(
            options(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0", data_path=str(tmp_path)), quiet()
        )
        await daemon.start()
        assert daemon.tcp is not None
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", daemon.tcp.port)
            writer.write(b"  V2SUB t c#ephemeral\nRDY 1\nPUB t\n\0\0\0\3one")
            async with asyncio.timeout(60):
                frames = b""
                while b"one" not in frames:
                    frames += await reader.read(1 << 16)
                at = frames.index(b"one")
                writer.write(b"FIN %b\n" % frames[at - 16 : at])  # from now on its FINs skip the parser
                writer.write(b"PUB t\n\0\0\0\3two")
                while b"two" not in frames:
                    frames += await reader.read(1 << 16)
                gone = asyncio.Event()
                weakref.finalize(daemon.broker.existing("t").channels["c#ephemeral"], gone.set)
                writer.close()
                await gone.wait()
        finally:
            await daemon.stop()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(talk())
