"""The facade for code that has no event loop."""

import asyncio
import queue
import sys
import threading

import pytest
from nsqd_double import NsqdDouble

from lapwing.client.errors import Unreachable
from lapwing.client.options import ClientOptions
from lapwing.client.sync import SyncConsumer, SyncProducer
from lapwing.errors import ConfigError
from lapwing.wire.nsq import commands as c


async def test_messages_are_taken_one_by_one_in_batches_and_by_iteration():
    def script(address):
        with SyncConsumer("t", "c", nsqd=address, max_in_flight=10) as consumer:
            first = consumer.get(timeout=60)
            assert first is not None
            first.finish()
            batch = consumer.take(3, timeout=60)
            while len(batch) < 3:
                batch += consumer.take(3 - len(batch), timeout=60)
            for message in batch:
                with message:
                    pass
            for message in consumer:
                message.requeue(1.0, backoff=False)
                break
            assert consumer.get(timeout=0.05) is None
            return [first.body, *(message.body for message in batch)]

    async with NsqdDouble() as nsqd:
        running = asyncio.create_task(asyncio.to_thread(script, nsqd.address))
        peer = await nsqd.subscriber(10)
        peer.deliver(b"1", b"2", b"3", b"4", b"5")

        assert await running == [b"1", b"2", b"3", b"4"]
        await nsqd.until(lambda: len(nsqd.said(c.Fin)) == 4 and len(nsqd.said(c.Req)) == 1)
        await nsqd.until(lambda: not nsqd.live)
        assert nsqd.said(c.Cls)


async def test_closing_gives_back_what_was_not_answered():
    def script(address):
        consumer = SyncConsumer("t", "c", nsqd=address, max_in_flight=10)
        assert consumer.get(timeout=60) is not None
        consumer.close()
        consumer.close()
        assert consumer.get() is None

    async with NsqdDouble() as nsqd:
        running = asyncio.create_task(asyncio.to_thread(script, nsqd.address))
        peer = await nsqd.subscriber(10)
        delivered = peer.deliver(b"1", b"2")
        await running
        await nsqd.until(lambda: not nsqd.live)

        assert sorted(request.id for request in nsqd.said(c.Req)) == delivered


async def test_a_message_that_comes_while_it_closes_counts_as_no_failure():
    def script(address):
        with SyncConsumer("t", "c", nsqd=address) as consumer:
            consumer._closed = True  # as another thread has begun with `close`
            closing.set()
            released.wait(60)

    closing, released = threading.Event(), threading.Event()
    async with NsqdDouble() as nsqd:
        running = asyncio.create_task(asyncio.to_thread(script, nsqd.address))
        peer = await nsqd.subscriber(1)
        await asyncio.to_thread(closing.wait, 60)
        peer.deliver(b"1")
        await nsqd.until(lambda: nsqd.said(c.Req))
        released.set()
        await running

        assert [(request.delay, request.free) for request in nsqd.said(c.Req)] == [(0, True)]


async def test_closing_lets_go_of_everybody_who_waits():
    async with NsqdDouble() as nsqd:
        consumer = await asyncio.to_thread(SyncConsumer, "t", "c", nsqd=nsqd.address)
        waiting = [asyncio.create_task(asyncio.to_thread(list, consumer)) for _ in range(3)]
        await asyncio.to_thread(consumer.close)

        assert await asyncio.wait_for(asyncio.gather(*waiting), 60) == [[], [], []]


async def test_in_a_forked_process_it_says_so_instead_of_waiting_for_ever():
    script = """
import os, sys
from lapwing.client.errors import ClientError
from lapwing.client.sync import SyncConsumer, SyncProducer
made = SyncProducer(sys.argv[1]), SyncConsumer("t", "c", nsqd=sys.argv[1])
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
for each in made:
    each.close()
try:
    made[0].publish("t", b"x")
except ClientError as error:
    print(error, flush=True)
os._exit(7)
"""
    async with NsqdDouble() as nsqd:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, nsqd.address, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await asyncio.wait_for(process.communicate(), 30)

    assert process.returncode == 7
    assert b"created before a fork" in out


LEFT_OPEN = """
import atexit, os, sys, threading

def last():  # registered first, so it runs last: after it the interpreter finalizes
    print("threads", sorted(t.name for t in threading.enumerate() if t.name.startswith("lapwing")), flush=True)

atexit.register(last)
from lapwing.client.sync import SyncConsumer, SyncProducer

address, end = sys.argv[1:]
producer = SyncProducer(address)
consumer = SyncConsumer("t", "c", nsqd=address)
producer.publish("t", b"main")
atexit.register(lambda: producer.publish("t", b"exit function"))
threading.Thread(target=lambda: (threading.main_thread().join(), producer.publish("t", b"thread"))).start()
if end == "fork":
    child = os.fork()
    if child:
        print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    else:
        atexit.unregister(last)
        producer.publish = lambda *arguments: None
        sys.exit(3)
if end == "raise":
    raise KeyError("main")
sys.exit(7)
"""


@pytest.mark.parametrize(("end", "status"), [("exit", 7), ("raise", 1), ("fork", 7)])
async def test_what_is_left_open_ends_before_the_interpreter_and_after_the_last_publish(end, status):
    async with NsqdDouble() as nsqd:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", LEFT_OPEN, nsqd.address, end,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await asyncio.wait_for(process.communicate(), 60)

        assert process.returncode == status
        assert out.decode().splitlines() == [*(["child 3"] if end == "fork" else []), "threads []"]
        assert {command.body for command in nsqd.said(c.Pub)} == {b"main", b"thread", b"exit function"}
        assert nsqd.said(c.Cls)


async def test_a_client_that_is_created_when_the_program_ends_is_refused():
    script = """
import atexit, sys
atexit.register(lambda: SyncProducer(sys.argv[1]))
from lapwing.client.sync import SyncProducer
"""
    async with NsqdDouble() as nsqd:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, nsqd.address, stderr=asyncio.subprocess.PIPE
        )
        _, error = await asyncio.wait_for(process.communicate(), 60)

    assert b"the program is ending" in error


def test_an_nsqd_that_is_not_there_is_named():
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
        SyncConsumer("t", "c", nsqd="127.0.0.1:1")


async def test_handlers_run_in_threads_and_publishes_can_be_submitted():
    def script(address):
        handled = queue.SimpleQueue()

        def handle(message):
            handled.put((message.body, threading.current_thread().name))
            if message.body == b"bad":
                raise ValueError("bad")

        options = ClientOptions(publish_timeout=7, max_in_flight=1)
        with SyncConsumer("t", "c", handle, nsqd=address, concurrency=2, options=options) as consumer:
            names = {handled.get(timeout=60)[1] for _ in range(3)}
            with pytest.raises(ConfigError, match="has a handler"):
                consumer.get()
            assert not consumer.wait(0)
            assert consumer.connections == [address]
        assert consumer.wait(0)
        with SyncProducer(address, options=options) as producer:
            assert producer.connections == [address]
            future = producer.submit("t", {"a": 1})
            producer.submit("t", "text")
            future.result(60)
        return names

    async with NsqdDouble(headers=True) as nsqd:
        running = asyncio.create_task(asyncio.to_thread(script, nsqd.address))
        peer = await nsqd.subscriber(2)  # as many as handlers
        peer.deliver(b"1", b"2")
        await nsqd.until(lambda: len(nsqd.said(c.Fin)) == 2)
        peer.deliver(b"bad")
        names = await running

        assert names <= {"lapwing-worker-0", "lapwing-worker-1"}
        (failed,) = nsqd.said(c.Req)
        assert failed.error.startswith("ValueError: bad")
        sent = b"".join(each.body for each in nsqd.said(c.Hmpub | c.Hpub))
        assert sent.index(b'{"content-type":"application/json"}{"a":1}') < sent.index(b"text/plain; charset=utf-8")
