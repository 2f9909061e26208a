"""Other people's clients, unchanged, on our nsqd: each publishes, consumes, requeues and touches as its users do."""

import asyncio
import contextlib
import itertools
import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ansq
import pytest
from parties import Job, Party, command

import daemons
from lapwing import Producer
from measuring import about_short_times

CLIENTS = ["pynsq", "gnsq", "ansq", "nsqjs"]
UPGRADING = ["pynsq", "gnsq", "nsqjs"]  # ansq knows neither TLS nor compression
LAYERS = [(True, ""), (False, "snappy"), (False, "deflate"), (True, "snappy"), (True, "deflate")]

numbers = itertools.count()
MakeJob = Callable[..., Job]


@pytest.fixture
def make_job(request: pytest.FixtureRequest, certificate: tuple[Path, Path]) -> MakeJob:
    def make(client: str, daemon: daemons.Daemon, **settings: Any) -> Job:
        modules = request.getfixturevalue("nsqjs_modules") if client == "nsqjs" else ""
        topic = f"compat_{client}_{next(numbers)}"
        return Job("127.0.0.1", daemon.tcp_port, topic, ca=str(certificate[0]), modules=modules, **settings)

    return make


def channel_of(daemon: daemons.Daemon, job: Job) -> dict[str, Any]:
    """What /stats shows of the only channel of the job's topic, once nothing is in flight any more."""
    found: dict[str, Any] = {}

    def look() -> bool:
        with urllib.request.urlopen(f"{daemon.url}/stats?format=json&topic={job.topic}") as answer:
            [topic] = json.load(answer)["topics"]
        [channel] = topic["channels"]
        found.update(channel, topic_message_count=topic["message_count"])
        return channel["in_flight_count"] == 0

    daemons.until(look, what="nothing in flight")
    return found


def attempts_of(report: dict[str, Any], name: str) -> list[int]:
    return [attempts for body, attempts, _ in report["deliveries"] if body == name]


def check(report: dict[str, Any], job: Job) -> None:
    """Every message came as often as it should, none too early, those published first before the others."""
    assert "error" not in report, report
    once = [*job.singles, *job.batch, "BIG", "later"]
    assert {name: attempts_of(report, name) for name in once} == {name: [1] for name in once}
    assert attempts_of(report, "again") == [1, 2]
    assert attempts_of(report, "slow") == [1]
    [later] = [seconds for body, _, seconds in report["deliveries"] if body == "later"]
    assert later >= job.delay / 1000
    first = [body for body, attempts, _ in report["deliveries"] if attempts == 1 and body != "later"]
    assert first == [*job.singles, *job.batch, "BIG", "again", "slow"]
    assert report["answers"] == len(job.singles) + 5


@pytest.mark.parametrize("client", CLIENTS)
@about_short_times
def test_a_client_publishes_consumes_requeues_and_touches(
    client: str, hasty_nsqd: daemons.Daemon, make_job: MakeJob
) -> None:
    job = make_job(client, hasty_nsqd, touches=7, heartbeat=1, msg_timeout=2)
    with Party(command(client), job) as party:
        check(party.report, job)
        channel = channel_of(hasty_nsqd, job)

        # every second, on both connections; nsqjs answers them in silence, or it would be cut off after two seconds
        assert party.report["heartbeats"] is None or party.report["heartbeats"] >= 2
        assert channel["depth"] == channel["deferred_count"] == channel["timeout_count"] == 0
        assert channel["requeue_count"] == 1
        assert channel["message_count"] == channel["topic_message_count"] == len(job.singles) + len(job.batch) + 4
        [consumer] = channel["clients"]
        assert client in consumer["user_agent"].lower()


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_sees_plain_bodies_where_every_message_has_headers(
    client: str, nsqd: daemons.Daemon, make_job: MakeJob
) -> None:
    job = make_job(client, nsqd, published=True, delay=0, touches=2)
    big = b"".join(b"%d," % number for number in range(20_000))[: job.big]  # as `reporting` knows it
    bodies = [*(body.encode() for body in [*job.singles, *job.batch]), big, b"later", b"again", b"slow"]

    async def publish() -> None:
        async with Producer(f"127.0.0.1:{nsqd.tcp_port}") as producer:
            await producer.publish_many(job.topic, bodies, headers={"key": "a", "traceparent": "00-1-2-01"})

    asyncio.run(publish())
    with Party(command(client), job) as party:
        assert "error" not in party.report, party.report
        seen = [(body, attempts) for body, attempts, _ in party.report["deliveries"]]
        channel_of(nsqd, job)

    names = [*job.singles, *job.batch, "BIG", "later", "again", "slow"]
    assert sorted(seen) == sorted([*((name, 1) for name in names), ("again", 2)])


@contextlib.contextmanager
def all_at_once(client_jobs: list[tuple[str, Job]]) -> Iterator[list[tuple[Job, dict[str, Any]]]]:
    """Several clients at work at the same time, which takes no longer than one: their jobs and reports."""
    with contextlib.ExitStack() as stack:
        begun = [(job, Party(command(client), job)) for client, job in client_jobs]
        for _, party in begun:
            stack.callback(party.kill)
        yield [(job, stack.enter_context(party).report) for job, party in begun]


@pytest.mark.parametrize("client", UPGRADING)
def test_a_client_does_the_same_through_tls_and_compression(
    client: str, nsqd: daemons.Daemon, make_job: MakeJob
) -> None:
    # pynsq gives up when it reads a part of a snappy chunk, whoever sent it, so its chunks must be small
    jobs = [
        make_job(
            client, nsqd, tls=tls, compression=compression, delay=100,
            big=1000 if (client, compression) == ("pynsq", "snappy") else 100_000,
        )
        for tls, compression in LAYERS
    ]  # fmt: skip
    with all_at_once([(client, job) for job in jobs]) as reports:
        for job, report in reports:
            check(report, job)
            [consumer] = channel_of(nsqd, job)["clients"]

            assert consumer["tls"] == job.tls
            assert consumer["snappy"] == (job.compression == "snappy")
            assert consumer["deflate"] == (job.compression == "deflate")


def test_every_client_finds_us_through_nsqlookupd(
    nsqd: daemons.Daemon, lookupd: daemons.Daemon, make_job: MakeJob
) -> None:
    addresses = {client: lookupd.url if client in ("pynsq", "gnsq") else lookupd.http for client in CLIENTS}
    jobs = [(client, make_job(client, nsqd, lookupd=addresses[client], delay=100)) for client in CLIENTS]
    with all_at_once(jobs) as reports:
        for job, report in reports:
            check(report, job)


def test_every_client_with_the_secret_is_let_in(guarded_nsqd: daemons.Daemon, make_job: MakeJob) -> None:
    jobs = [(client, make_job(client, guarded_nsqd, secret="open sesame", delay=100)) for client in UPGRADING]
    with all_at_once(jobs) as reports:
        for job, report in reports:
            check(report, job)
            [consumer] = channel_of(guarded_nsqd, job)["clients"]

            assert consumer["authed"]
            assert consumer["auth_identity"] == "somebody"


def test_a_client_with_another_secret_hears_why_it_is_not(guarded_nsqd: daemons.Daemon, make_job: MakeJob) -> None:
    with Party(command("nsqjs"), make_job("nsqjs", guarded_nsqd, secret="shut sesame")) as party:
        assert "E_UNAUTHORIZED" in party.report["error"]  # the others try again, forever and in silence


async def test_ansq_with_the_secret_hears_who_it_is(guarded_nsqd: daemons.Daemon) -> None:
    """That is as far as it gets, with any nsqd: it never notes that it was let in, and sends nothing more."""
    options = ansq.ConnectionOptions(auto_reconnect=False)
    connection = await ansq.open_connection("127.0.0.1", guarded_nsqd.tcp_port, connection_options=options)
    answer = await connection.auth("open sesame")
    await connection.close()

    assert json.loads(answer.body) == {"identity": "somebody", "identity_url": "", "permission_count": 1}
