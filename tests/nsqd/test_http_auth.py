"""Permissions over HTTP: with an auth server, a caller needs for HTTP what it needs for TCP."""

import asyncio
import http.client
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from daemons import Daemon, nsqd
from http_double import HttpDouble, reply

EVERYTHING = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"], "admin": True}
ORDERS = "^orders$"


def grants(*permissions: str, topic: str = ORDERS, channels: tuple[str, ...] = (".*",)) -> dict[str, Any]:
    """An authorization as the auth server gives it: `admin` is a member of its own beside NSQ's permissions."""
    known = [permission for permission in permissions if permission != "admin"]
    return {"topic": topic, "channels": list(channels), "permissions": known, "admin": "admin" in permissions}


SECRETS = {
    "root": [EVERYTHING],
    "publisher": [grants("publish")],
    "reader": [grants("subscribe", channels=("^billing$",))],
    "operator": [grants("admin", channels=("^$", "^billing$"))],
    "billing admin": [grants("admin", channels=("^billing$",))],
    "dead reader": [grants("subscribe", channels=("^dead$",))],
    "billing of all": [grants("admin", topic=".*", channels=("^$", "^billing$"))],
    "graves admin": [grants("admin", topic="^graves$")],
    "graves admin who publishes": [grants("admin", topic="^graves$"), grants("publish")],
    "nobody": [],
}


class AuthServer:
    """An auth server that knows `SECRETS`."""

    def __init__(self) -> None:
        self.ttl = 3600
        self.down = False
        self.double = HttpDouble(self._answer)

    @property
    def asked(self) -> list[dict[str, list[str]]]:
        return [parse_qs(urlsplit(target).query) for _, target, _, _ in self.double.requests]

    def _answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> bytes:
        if self.down:
            return reply({}, "500 Internal Server Error")
        secret = parse_qs(urlsplit(target).query)["secret"][0]
        if secret not in SECRETS:
            return reply({}, "403 Forbidden")
        return reply({"ttl": self.ttl, "identity": secret, "authorizations": SECRETS[secret]})


class Caller:
    """Asks a daemon over HTTP."""

    def __init__(self, daemon: Daemon, auth: AuthServer) -> None:
        self.daemon = daemon
        self.auth = auth

    async def ask(
        self, method: str, target: str, secret: str | None = None, body: bytes = b"", chunked: bool = False
    ) -> tuple[int, Any]:
        return await asyncio.to_thread(self._ask, method, target, secret, body, chunked)

    def _ask(self, method: str, target: str, secret: str | None, body: bytes, chunked: bool) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self.daemon.http, timeout=60)
        headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
        pieces = (body[at : at + 65536] for at in range(0, len(body), 65536)) if chunked else body
        connection.request(method, target, pieces, headers, encode_chunked=chunked)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if answer.status == 401:
            assert answer.headers["WWW-Authenticate"] == 'Bearer realm="nsqd"'
        try:
            return answer.status, json.loads(content)
        except ValueError:
            return answer.status, content.decode()

    async def topics(self) -> list[str]:
        status, answer = await self.ask("GET", "/stats?format=json", "root")
        assert status == 200
        return [topic["topic_name"] for topic in answer["topics"]]


@asynccontextmanager
async def guarded(*flags: str) -> AsyncIterator[Caller]:
    auth = AuthServer()
    async with auth.double:
        with nsqd(f"--auth-http-address={auth.double.address}", *flags) as daemon:
            yield Caller(daemon, auth)


PROTECTED = [
    ("GET", "/stats"), ("GET", "/metrics"), ("POST", "/pub?topic=orders"), ("POST", "/mpub?topic=orders"),
    ("POST", "/topic/create?topic=orders"), ("POST", "/topic/delete?topic=orders"),
    ("POST", "/topic/empty?topic=orders"), ("POST", "/topic/pause?topic=orders"),
    ("POST", "/channel/create?topic=orders&channel=c"), ("POST", "/channel/delete?topic=orders&channel=c"),
    ("GET", "/log/offsets"), ("GET", "/log/read?topic=orders"),
    ("POST", "/channel/commit?topic=orders&channel=c&sequence=1"), ("POST", "/stage?topic=orders"),
    ("POST", "/stage/commit"), ("POST", "/stage/abort"), ("GET", "/stage/status?sink=s"), ("GET", "/pipelines"),
    ("POST", "/pipelines/p"), ("GET", "/config/log_level"), ("PUT", "/config/log_level"),
    ("GET", "/debug/pprof/"), ("POST", "/debug/freememory"),
]  # fmt: skip


async def test_without_a_secret_only_ping_and_info_answer() -> None:
    async with guarded() as caller:
        refused = {target: await caller.ask(method, target, body=b"x") for method, target in PROTECTED}
        for_all = [(await caller.ask("GET", target))[0] for target in ("/ping", "/info")]
        topics = await caller.topics()

    assert set(map(str, refused.values())) == {str((401, {"message": "AUTH_REQUIRED"}))}, refused
    assert for_all == [200, 200]
    assert topics == []


async def test_a_secret_allows_what_its_permissions_cover_and_nothing_else() -> None:
    read, commit = "/log/read?topic=orders&from=1", "/channel/commit?topic=orders&sequence=1&back=1"
    async with guarded() as caller:
        expected = [
            ("publisher", "POST", "/pub?topic=orders", 200),
            ("publisher", "POST", "/mpub?topic=orders", 200),
            ("publisher", "POST", "/topic/create?topic=orders", 200),
            ("publisher", "POST", "/pub?topic=other", 403),
            ("publisher", "POST", "/pub?topic=orders&topic=other", 403),
            ("publisher", "GET", read, 403),
            ("publisher", "POST", "/topic/delete?topic=orders", 403),
            ("publisher", "GET", "/stats?topic=orders", 200),
            ("publisher", "GET", "/stats", 403),
            ("publisher", "GET", "/metrics", 403),
            ("reader", "POST", "/channel/create?topic=orders&channel=billing", 200),
            ("reader", "POST", "/channel/create?topic=orders&channel=lake", 403),
            ("reader", "GET", read + "&channel=billing", 200),
            ("reader", "GET", read, 403),
            ("reader", "GET", "/log/offsets?topic=orders&channel=billing", 200),
            ("reader", "GET", "/log/offsets?topic=orders&topic=other&channel=billing", 403),
            ("reader", "GET", "/log/offsets", 403),
            ("reader", "POST", commit + "&channel=billing", 200),
            ("reader", "POST", commit + "&channel=lake", 403),
            ("reader", "POST", "/channel/empty?topic=orders&channel=billing", 403),
            ("reader", "POST", "/pub?topic=orders", 403),
            ("billing admin", "POST", "/channel/pause?topic=orders&channel=billing", 200),
            ("billing admin", "POST", "/topic/pause?topic=orders&channel=billing", 403),
            ("operator", "POST", "/channel/unpause?topic=orders&channel=billing", 200),
            ("operator", "POST", "/topic/pause?topic=orders", 200),
            ("operator", "GET", read, 403),
            ("operator", "POST", "/pub?topic=orders", 403),
            ("operator", "GET", "/config/log_level", 403),
            ("nobody", "GET", "/pipelines", 403),
            ("publisher", "GET", "/pipelines", 200),
            ("root", "GET", "/config/log_level", 200),
            ("root", "GET", "/metrics", 200),
            ("root", "GET", "/debug/pprof/heap", 200),
            ("operator", "POST", "/topic/delete?topic=orders", 200),
            ("wrong", "GET", "/stats", 403),
        ]
        seen = [(*call[:3], (await caller.ask(call[1], call[2], call[0], b"x"))[0]) for call in expected]

    assert seen == expected


async def test_a_refusal_names_the_permission_that_is_missing() -> None:
    async with guarded() as caller:
        unauthorized = await caller.ask("POST", "/pub?topic=other", "publisher", b"x")
        unknown = await caller.ask("POST", "/pub?topic=other", "wrong", b"x")

    assert unauthorized == (
        403, {"message": "UNAUTHORIZED", "permission": "publish", "topic": "other", "channel": ""}
    )  # fmt: skip
    assert unknown == (403, {"message": "AUTH_FAILED"})


async def test_a_channel_that_only_the_body_names_needs_a_permission_too() -> None:
    async with guarded() as caller:
        for channel in ("billing", "lake"):
            await caller.ask("POST", "/topic/create?topic=orders", "root")
            await caller.ask("POST", f"/channel/create?topic=orders&channel={channel}", "root")
        seen = {}
        for path, wish in (("seek", {"to": "latest"}), ("claim", {"state": "ready", "action": "finish"})):
            for channel in ("billing", "lake"):
                body = json.dumps({"topic": "orders", "channel": channel, **wish}).encode()
                seen[path, channel] = (await caller.ask("POST", f"/channel/{path}", "billing of all", body))[0]

    assert seen == {
        ("seek", "billing"): 200, ("seek", "lake"): 403, ("claim", "billing"): 200, ("claim", "lake"): 403,
    }  # fmt: skip


async def test_dead_letters_go_only_where_those_who_send_them_there_may_publish() -> None:
    target = "/channel/settings?topic=orders&channel=billing"
    async with guarded() as caller:
        await caller.ask("POST", "/topic/create?topic=orders", "root")
        await caller.ask("POST", "/channel/create?topic=orders&channel=billing", "root")
        to_others = await caller.ask("PATCH", target, "operator", b'{"dead_topic": "secrets"}')
        to_nowhere = await caller.ask("PATCH", target, "operator", b'{"dead_topic": "", "max_attempts": 3}')
        by_root = await caller.ask("PATCH", target, "root", b'{"dead_topic": "secrets"}')

    assert to_others == (
        403, {"message": "UNAUTHORIZED", "permission": "publish or admin", "topic": "secrets", "channel": ""}
    )  # fmt: skip
    assert (to_nowhere[0], by_root[0]) == (200, 200)


async def test_letters_are_edited_and_published_again_only_by_those_who_may_publish_them() -> None:
    wishes = {
        "edited": b'{"dry_run": true, "filter": {"sequences": [0]}, "body": "forged"}',
        "to the topic": b'{"dry_run": true, "to": "topic"}', "back": b'{"dry_run": true}',
    }  # fmt: skip
    async with guarded() as caller:
        await caller.ask("POST", "/topic/create?topic=orders", "root")
        await caller.ask("POST", "/channel/create?topic=orders&channel=billing", "root")
        limits = b'{"max_depth": 1, "overflow": "dead", "dead_topic": "graves"}'
        await caller.ask("PATCH", "/channel/settings?topic=orders&channel=billing", "root", limits)
        for _ in range(2):
            await caller.ask("POST", "/pub?topic=orders", "root", b"x")
        seen = {
            (wish, secret): (await caller.ask("POST", "/dead/redrive?topic=graves", secret, body))[0]
            for wish, body in wishes.items()
            for secret in ("graves admin", "graves admin who publishes")
        }

    refused = {("edited", "graves admin"), ("to the topic", "graves admin")}
    assert seen == {wish: 403 if wish in refused else 200 for wish in seen}


async def test_dead_letter_topics_are_listed_for_those_who_may_read_them() -> None:
    async with guarded() as caller:
        for topic in ("orders", "secrets"):
            await caller.ask("POST", f"/topic/create?topic={topic}", "root")
            await caller.ask("POST", f"/channel/create?topic={topic}&channel=dead", "root")
        listed = {
            secret: [each["topic"] for each in (await caller.ask("GET", "/dead", secret))[1]["topics"]]
            for secret in ("root", "publisher", "billing of all", "dead reader")
        }

    assert listed == {
        "root": ["orders", "secrets"], "publisher": [], "billing of all": ["orders", "secrets"],
        "dead reader": ["orders"],
    }  # fmt: skip


async def test_an_answer_of_the_auth_server_holds_for_its_ttl() -> None:
    async with guarded() as caller:
        for _ in range(5):
            assert (await caller.ask("POST", "/pub?topic=orders", "publisher", b"x"))[0] == 200
        once = len(caller.auth.asked)
        question = caller.auth.asked[0]

        caller.auth.ttl = 1
        assert (await caller.ask("GET", "/pipelines", "root"))[0] == 200
        async with asyncio.timeout(60):
            while len(caller.auth.asked) < once + 2:
                assert (await caller.ask("GET", "/pipelines", "root"))[0] == 200

    assert once == 1
    assert (question["secret"], question["remote_ip"], question["tls"]) == (["publisher"], ["127.0.0.1"], ["false"])


async def test_callers_who_wait_for_the_same_answer_ask_once() -> None:
    async with guarded() as caller:
        statuses = await asyncio.gather(
            *(caller.ask("POST", "/pub?topic=orders", "publisher", b"x") for _ in range(8))
        )

        assert {status for status, _ in statuses} == {200}
        assert len(caller.auth.asked) < 8


async def test_without_an_auth_server_that_answers_nothing_is_carried_out() -> None:
    async with guarded() as caller:
        caller.auth.down = True
        down = await caller.ask("POST", "/pub?topic=orders", "root", b"x")
        caller.auth.down = False

        assert down == (503, {"message": "AUTH_UNAVAILABLE"})
        assert await caller.topics() == []


async def test_a_body_that_turns_out_too_long_creates_no_topic_for_a_stranger() -> None:
    async with guarded("--max-body-size=100000") as caller:
        await caller.ask("POST", "/mpub?topic=orders", "wrong", b"x\n" * 100_000, chunked=True)

        assert await caller.topics() == []


async def test_a_staged_batch_is_committed_and_aborted_only_by_those_who_may_publish_it() -> None:
    part = (0).to_bytes(4, "big") + (1).to_bytes(4, "big") + (1).to_bytes(4, "big") + b"x"
    commit = json.dumps({"sink": "s", "batch": 1, "keys": [["k", 1]]}).encode()
    abort = json.dumps({"sink": "s", "batch": 1, "keys": ["k"]}).encode()
    async with guarded() as caller:
        staged = await caller.ask("POST", "/stage?sink=s&topic=other&batch=1&part=0&key=k", "root", part)
        elsewhere = await caller.ask("POST", "/stage?sink=s&topic=other&batch=1&part=0&key=k", "publisher", part)
        committed = await caller.ask("POST", "/stage/commit", "publisher", commit)
        aborted = await caller.ask("POST", "/stage/abort", "publisher", abort)
        by_owner = await caller.ask("POST", "/stage/commit", "root", commit)

    assert staged == (200, {"staged": True, "count": 1})
    assert [elsewhere[0], committed[0], aborted[0]] == [403, 403, 403]
    assert committed[1]["topic"] == "other"
    assert by_owner == (200, {"published": 1, "already": False})


async def test_stats_and_metrics_are_open_when_the_operator_says_so() -> None:
    async with guarded("--stats-without-auth") as caller:
        statuses = [(await caller.ask("GET", target))[0] for target in ("/stats", "/metrics", "/pipelines")]

    assert statuses == [200, 200, 401]


async def test_the_configuration_never_shows_a_secret() -> None:
    with nsqd("--auth-http-address=http://joe:hush@127.0.0.1:1/auth?token=hush") as daemon:
        caller = Caller(daemon, AuthServer())
        without = await caller.ask("GET", "/config/auth_http_addresses")
    assert without[0] == 401

    auth = AuthServer()
    async with auth.double:
        address = f"http://joe:hush@{auth.double.address}/auth"
        with nsqd(f"--auth-http-address={address}") as daemon:
            caller = Caller(daemon, auth)
            shown = await caller.ask("GET", "/config/auth_http_addresses", "root")
            command_line = await caller.ask("GET", "/debug/pprof/cmdline", "root")

    assert shown == (200, [f"http://***@{auth.double.address}/auth"])
    assert "hush" not in command_line[1]
    assert "hush" not in daemon.stderr


@contextmanager
def listening_on(address: str, *flags: str) -> Iterator[Daemon]:
    with nsqd(*flags, tcp_address=address, http_address="127.0.0.1:0") as daemon:
        yield daemon


@pytest.mark.parametrize(
    ("address", "flags", "warned"),
    [
        ("127.0.0.1:0", (), 0),
        ("0.0.0.0:0", (), 1),
        ("0.0.0.0:0", ("--auth-http-address=127.0.0.1:1",), 0),
    ],
)
def test_a_node_that_others_reach_without_authentication_warns_once(
    address: str, flags: tuple[str, ...], warned: int
) -> None:
    with listening_on(address, *flags) as daemon:
        daemon.stop()

    assert daemon.stderr.count("no authentication on") == warned
