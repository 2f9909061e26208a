"""Other people's Redis clients and frameworks, unchanged, on our Redis door: each is used as its users do."""

import asyncio
import hashlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from taskiq.kicker import AsyncKicker
from taskiq_redis import RedisStreamBroker
from walrus import Database

import daemons

SCRIPTS = Path(__file__).parent / "redis_js"
numbers = itertools.count()


@pytest.fixture(scope="session")
def redis_nsqd() -> Iterator[daemons.Daemon]:
    with daemons.nsqd("--redis-address=127.0.0.1:0") as daemon:
        yield daemon


@pytest.fixture
def stream() -> str:
    return f"compat:{next(numbers)}"


def place(daemon: daemons.Daemon) -> dict[str, Any]:
    host, _, port = daemon.addresses["Redis"].rpartition(":")
    return {"host": host, "port": int(port)}


# --- redis-py ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
def client(request: pytest.FixtureRequest, redis_nsqd: daemons.Daemon) -> Iterator[redis.Redis]:
    with redis.Redis(**place(redis_nsqd), protocol=request.param, decode_responses=True) as made:
        yield made


def entries(found: Any) -> list[Any]:
    """The entries of the one stream that was read, whatever the protocol."""
    (only,) = found.values() if isinstance(found, dict) else [pair[1] for pair in found]
    return list(only[0] if only and isinstance(only[0], list) else only)


def test_redis_py_shares_work_in_a_group(client: redis.Redis, stream: str) -> None:
    client.xgroup_create(stream, "g", id="0", mkstream=True)
    ids = [client.xadd(stream, {"data": f"m{number}", "n": number}) for number in range(4)]
    first = entries(client.xreadgroup("g", "a", {stream: ">"}, count=3))
    second = entries(client.xreadgroup("g", "b", {stream: ">"}, count=3))

    assert [entry for entry, _ in first + second] == ids
    assert first[0][1] == {"data": "m0", "n": "0"}
    assert client.xack(stream, "g", ids[0], ids[3]) == 2
    assert client.xpending(stream, "g")["pending"] == 2
    waiting = client.xpending_range(stream, "g", min="-", max="+", count=10)
    assert [(line["message_id"], line["consumer"], line["times_delivered"]) for line in waiting] == [
        (ids[1], "a", 1),
        (ids[2], "a", 1),
    ]
    assert [entry for entry, _ in client.xclaim(stream, "g", "b", 0, [ids[1]])] == [ids[1]]
    _, claimed, _ = client.xautoclaim(stream, "g", "c", 0, "0-0")
    assert [entry for entry, _ in claimed] == ids[1:3]
    assert client.xinfo_groups(stream)[0]["pending"] == 2
    assert {line["name"] for line in client.xinfo_consumers(stream, "g")} == {"a", "b", "c"}
    assert client.xinfo_stream(stream)["length"] == 4
    assert client.xgroup_delconsumer(stream, "g", "c") == 2
    assert client.xgroup_destroy(stream, "g")


def test_redis_py_reads_ranges_and_trims(client: redis.Redis, stream: str) -> None:
    ids = [client.xadd(stream, {"n": number}) for number in range(10)]

    assert [entry for entry, _ in client.xrange(stream, ids[2], ids[4])] == ids[2:5]
    assert [entry for entry, _ in client.xrevrange(stream, count=2)] == ids[:-3:-1]
    assert entries(client.xread({stream: ids[7]})) == client.xrange(stream, ids[8])
    assert client.xdel(stream, ids[0]) == 1
    assert client.xtrim(stream, maxlen=5, approximate=False) == 4
    assert client.xadd(stream, {"n": 10}, maxlen=3, approximate=False)
    assert client.xlen(stream) == 3
    assert stream in set(client.scan_iter(match="compat:*", _type="stream"))
    assert client.type(stream) == "stream"
    assert client.delete(stream) == 1


def test_redis_py_transactions_watch_and_pipelines(client: redis.Redis, stream: str) -> None:
    with client.pipeline() as pipe:
        replies = pipe.xadd(stream, {"a": 1}).xlen(stream).xadd(stream, {"a": 2}).execute()
    assert replies[1] == 1
    with client.pipeline(transaction=False) as pipe:
        for number in range(500):
            pipe.xadd(stream, {"data": number})
        assert len(set(pipe.execute())) == 500
    with client.pipeline() as pipe:
        pipe.watch(stream)
        client.xadd(stream, {"a": 3})
        pipe.multi()
        pipe.xlen(stream)
        with pytest.raises(redis.WatchError):
            pipe.execute()


def test_redis_py_gets_the_errors_it_knows(client: redis.Redis, stream: str) -> None:
    client.xgroup_create(stream, "g", mkstream=True)

    with pytest.raises(redis.ResponseError, match="BUSYGROUP"):
        client.xgroup_create(stream, "g")
    with pytest.raises(redis.ResponseError, match="NOGROUP"):
        client.xreadgroup("nosuch", "a", {stream: ">"})
    with pytest.raises(redis.ResponseError, match="unknown command"):
        client.lpush("key", "value")
    with pytest.raises(redis.ResponseError, match="locks only"):
        client.set("key", "value")
    assert client.ping()
    assert client.info()["server_name"] == "lapwing"
    assert client.client_list()
    assert client.config_get("databases") == {"databases": "16"}


@pytest.mark.parametrize("protocol", [2, 3])
async def test_redis_py_asyncio_waits_for_entries(redis_nsqd: daemons.Daemon, stream: str, protocol: int) -> None:
    async with (
        redis.asyncio.Redis(**place(redis_nsqd), protocol=protocol) as producer,
        redis.asyncio.Redis(**place(redis_nsqd), protocol=protocol) as consumer,
    ):
        await producer.xgroup_create(stream, "g", mkstream=True)
        waiting = asyncio.ensure_future(consumer.xreadgroup("g", "a", {stream: ">"}, block=10_000))
        tail = asyncio.ensure_future(producer.xread({stream: "$"}, block=10_000, count=5))
        await asyncio.sleep(0)
        async with redis.asyncio.Redis(**place(redis_nsqd), protocol=protocol) as other:
            ids = []
            while not (waiting.done() and tail.done()):
                ids.append(await other.xadd(stream, {b"body": b"\x00\xff"}))
        got = entries(await waiting)
        assert got[0] == (ids[0], {b"body": b"\x00\xff"})
        assert await producer.xack(stream, "g", *[entry for entry, _ in got]) == len(got)
        assert await consumer.xreadgroup("g", "nobody", {stream: ids[-1]}) is not None


def test_redis_py_locks(client: redis.Redis, stream: str) -> None:
    lock = client.lock(stream, timeout=600, blocking=False)
    other = client.lock(stream, timeout=600, blocking=False)

    assert lock.acquire()
    assert not other.acquire()
    assert lock.locked()
    assert lock.owned()
    assert lock.extend(600)
    assert client.ttl(stream) > 900
    assert lock.reacquire()
    lock.release()
    assert other.acquire()
    with pytest.raises(redis.exceptions.LockError):
        lock.release()
    other.release()


# --- frameworks ----------------------------------------------------------------------------------------------------


def test_walrus_consumer_groups(redis_nsqd: daemons.Daemon, stream: str) -> None:
    database = Database(**place(redis_nsqd))
    group = database.consumer_group("g", [stream])
    group.create()
    group.set_id("$")
    first = database.Stream(stream).add({"data": "x"})
    found = group.read()
    assert [(key, entries[0][0]) for key, entries in found] == [(stream.encode(), first)]
    assert getattr(group, stream.replace(":", "_")).ack(first) == 1
    assert len(database.Stream(stream)) == 1
    database.close()


TASKS = int(os.environ.get("LAPWING_TASKIQ_TASKS", "200"))
KILLS = 4


def test_taskiq_workers_handle_every_task_although_they_are_killed(
    redis_nsqd: daemons.Daemon, stream: str, tmp_path: Path
) -> None:
    address, notes = redis_nsqd.addresses["Redis"], tmp_path / "notes"
    notes.touch()
    environment = {
        **os.environ, "TASKIQ_REDIS": address, "TASKIQ_STREAM": stream, "TASKIQ_NOTES": str(notes),
        "PYTHONPATH": str(Path(__file__).parent),
    }  # fmt: skip
    command = [sys.executable, "-m", "taskiq", "worker", "--workers=1", "taskiq_worker:broker", "--log-level=WARNING"]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, env=environment, start_new_session=True)

    async def publish(numbers: range) -> None:
        broker = RedisStreamBroker(f"redis://{address}", queue_name=stream)
        for number in numbers:
            await AsyncKicker("note", broker, {}).kiq(number)
        await broker.shutdown()

    def handled() -> set[int]:
        return {int(line) for line in notes.read_text().split()}

    deadline = time.monotonic() + 240
    published = TASKS
    workers = [start(), start()]
    try:
        for number in range(KILLS):
            done = len(handled())
            asyncio.run(publish(range(number * TASKS // KILLS, (number + 1) * TASKS // KILLS)))
            while len(handled()) == done:
                assert time.monotonic() < deadline, "no task is handled"
                time.sleep(0.01)
            os.killpg(workers[0].pid, signal.SIGKILL)
            workers.pop(0).wait()
            workers.append(start())
        with redis.Redis(**place(redis_nsqd)) as client:
            while not handled().issuperset(range(TASKS)) or client.xpending(stream, "g")["pending"]:
                assert time.monotonic() < deadline, f"{len(handled())} of {published} tasks were handled"
                asyncio.run(publish(range(published, published + 1)))  # a worker claims when it has received a task
                published += 1
                time.sleep(0.2)
    finally:
        for worker in workers:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()


def test_faststream_handles_a_stream_with_a_group(redis_nsqd: daemons.Daemon, stream: str) -> None:
    from faststream.redis import RedisBroker, StreamSub

    async def scene() -> dict[str, Any]:
        broker = RedisBroker(f"redis://{redis_nsqd.addresses['Redis']}")
        handled: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

        @broker.subscriber(stream=StreamSub(stream, group="g", consumer="c", polling_interval=100))
        async def handle(order: dict[str, Any]) -> None:
            if not handled.done():
                handled.set_result(order)

        async with broker:
            await broker.start()
            await broker.publish({"id": 7}, stream=stream)
            return await asyncio.wait_for(handled, 60)

    assert asyncio.run(scene()) == {"id": 7}


# --- JavaScript ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def node_modules() -> str:
    """Where ioredis and node-redis are installed: outside the repository, once for each lock file."""
    missing = [program for program in ("node", "npm") if shutil.which(program) is None]
    if missing:
        pytest.fail(f"{' and '.join(missing)} not found: `make system` (part of `make test`) installs nodejs and npm")
    lock = (SCRIPTS / "package-lock.json").read_bytes()
    cache = Path(os.environ.get("LAPWING_CACHE", Path.home() / ".cache" / "lapwing"))
    folder = cache / f"redis-js-{hashlib.sha256(lock).hexdigest()[:12]}"
    if not (folder / "node_modules" / "redis").exists():
        cache.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix="redis-js-", dir=cache))
        for name in ("package.json", "package-lock.json"):
            shutil.copy(SCRIPTS / name, fresh)
        install = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        done = subprocess.run(install, cwd=fresh, capture_output=True, text=True, timeout=110, check=False)
        if done.returncode:
            shutil.rmtree(fresh)
            pytest.fail(f"npm could not install the Redis clients from their lock file:\n{done.stderr[-2000:]}")
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    return str(folder)


@pytest.mark.parametrize("script", ["ioredis", "node_redis"])
def test_javascript_clients(script: str, redis_nsqd: daemons.Daemon, stream: str, node_modules: str) -> None:
    where = place(redis_nsqd)
    command = ["node", str(SCRIPTS / f"{script}.js"), node_modules, where["host"], str(where["port"]), stream]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == {
        "woken": [["data", "one"]],
        "rest": [["data", "two"], ["name", "Sara"]],
        "length": 3,
        "pipelined": True,
        "acked": 2,
        "claimed": [True],
        "pending": 1,
        "info": True,
        "buffer": ["name", "Sara"],
        "left": 102,
    }
