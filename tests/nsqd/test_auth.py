"""AUTH: what auth servers say, and how they are asked."""

import json
import time
from typing import Any

import pytest
from doors import options

from http_double import HttpDouble, reply
from lapwing.nsqd.doors.auth import Authenticator, AuthFailed, Authorizations, understand

SECOND = 1_000_000_000
ANYTHING = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}


def answer(*authorizations: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"ttl": 60, "identity": "joe", "identity_url": "http://joe", "authorizations": list(authorizations)} | more


def understood(*authorizations: dict[str, Any]) -> Authorizations:
    return understand(answer(*authorizations), b"s", now=0)


def grant(topic: str, channels: list[str], *permissions: str) -> dict[str, Any]:
    return {"topic": topic, "channels": channels, "permissions": list(permissions)}


def test_an_answer_holds_for_its_ttl() -> None:
    found = understand(answer(ANYTHING), b"s", now=5 * SECOND)

    assert (found.identity, found.identity_url, found.secret) == ("joe", "http://joe", b"s")
    assert len(found.authorizations) == 1
    assert not found.expired(65 * SECOND - 1)
    assert found.expired(65 * SECOND)


def test_patterns_are_searched_not_matched_whole() -> None:
    found = understood(grant("foo", ["^c$"], "subscribe"))

    assert found.allows("subscribe", "xfoox", "c")
    assert not found.allows("subscribe", "xfoox", "cc")
    assert not found.allows("subscribe", "fo", "c")
    assert not found.allows("publish", "foo", "c")


def test_to_publish_is_to_be_allowed_for_the_empty_channel() -> None:
    assert understood(grant("t", [".*"], "publish")).allows("publish", "t", "")
    assert not understood(grant("t", ["foo"], "publish")).allows("publish", "t", "")
    assert not understood(grant("t", [], "publish")).allows("publish", "t", "")


def test_any_one_grant_is_enough_but_it_must_cover_all_three() -> None:
    found = understood(grant("a", [".*"], "subscribe"), grant("b", ["c"], "publish", "subscribe"))

    assert found.allows("subscribe", "a", "x")
    assert found.allows("subscribe", "b", "c")
    assert not found.allows("publish", "a", "x")
    assert not found.allows("subscribe", "b", "d")


def test_a_pattern_that_would_take_forever_elsewhere_takes_no_time() -> None:
    found = understood(grant("(a*)*(a|aa)+$", [".*"], "publish"))
    began = time.process_time()
    allowed = found.allows("publish", "a" * 63 + "b", "")

    assert not allowed
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    "document",
    [
        [],
        None,
        "x",
        {},
        answer(ANYTHING, ttl=0),
        answer(ANYTHING, ttl=-1),
        answer(ANYTHING, ttl="60"),
        answer(ANYTHING, ttl=True),
        answer(ANYTHING, ttl=1.5),
        answer(ANYTHING, identity=5),
        answer(authorizations={}),
        answer(authorizations=["x"]),
        answer(grant("t", [".*"], "publish", "root")),
        answer(grant("(", [".*"], "publish")),
        answer(grant("(?=look)ahead", [".*"], "publish")),
        answer(grant(r"(a)\1", [".*"], "publish")),
        answer(ANYTHING, grant("t", ["["], "publish")),
        answer({"topic": 1, "channels": [], "permissions": []}),
        answer({"topic": "t", "channels": "c", "permissions": []}),
        answer({"topic": "t", "channels": [1], "permissions": []}),
    ],
)
def test_an_answer_with_anything_wrong_in_it_is_no_answer(document: Any) -> None:
    with pytest.raises(AuthFailed):
        understand(document, b"s", now=0)


def test_no_authorizations_is_a_lawful_answer() -> None:
    assert understand({"ttl": 1}, b"s", now=0).authorizations == ()
    assert understand({"ttl": 1, "authorizations": None}, b"s", now=0).authorizations == ()


async def asked(method: str, secret: bytes = b"a b&\xff", path: str = "") -> tuple[Authorizations, Any]:
    async with HttpDouble(lambda *_: reply(answer(ANYTHING))) as server:
        address = f"http://{server.address}{path}" if path else server.address
        authenticator = Authenticator(
            options(auth_http_addresses=(address,), auth_http_request_method=method), lambda: 7 * SECOND
        )
        found = await authenticator.query(secret=secret, remote_ip="1.2.3.4", tls=True, common_name="é")
    return found, server.requests[0]


async def test_a_server_is_asked_by_get_with_the_values_in_their_order() -> None:
    found, (method, target, _, body) = await asked("get")

    assert (method, body) == ("GET", b"")
    assert target == "/auth?common_name=%C3%A9&remote_ip=1.2.3.4&secret=a+b%26%FF&tls=true"
    assert found.secret == b"a b&\xff"
    assert found.expires == 67 * SECOND


async def test_a_server_may_be_given_as_a_url() -> None:
    _, (_, target, _, _) = await asked("get", b"s", "/own/path")

    assert target.startswith("/own/path?common_name=")


async def test_a_server_may_be_asked_by_post() -> None:
    _, (method, target, headers, body) = await asked("POST", b"s")

    assert (method, target, headers["content-type"]) == ("POST", "/auth", "application/json")
    assert json.loads(body) == {"common_name": ["é"], "remote_ip": ["1.2.3.4"], "secret": ["s"], "tls": ["true"]}


async def test_every_server_is_tried_until_one_answers() -> None:
    async with (
        HttpDouble(lambda *_: reply(answer(ANYTHING))) as good,
        HttpDouble(lambda *_: reply({"ttl": 0})) as bad,
    ):
        addresses = ("127.0.0.1:1", bad.address, good.address)
        authenticator = Authenticator(options(auth_http_addresses=addresses), lambda: 0)
        found = [
            await authenticator.query(secret=b"s", remote_ip="", tls=False, common_name="") for _ in range(20)
        ]

    assert all(len(each.authorizations) == 1 for each in found)
    assert 0 < len(bad.requests) < 20  # the beginning is chosen at random


async def test_no_server_with_an_answer_is_a_failure_that_names_them_all() -> None:
    async with HttpDouble(lambda *_: reply({}, "500 Internal Server Error")) as broken:
        authenticator = Authenticator(options(auth_http_addresses=("127.0.0.1:1", broken.address)), lambda: 0)
        with pytest.raises(AuthFailed) as caught:
            await authenticator.query(secret=b"hush", remote_ip="", tls=False, common_name="")

    assert broken.address in str(caught.value)
    assert "127.0.0.1:1" in str(caught.value)
    assert "hush" not in str(caught.value)


async def test_a_failure_shows_no_user_password_or_query_of_an_address() -> None:
    async with HttpDouble(lambda *_: reply({}, "403 Forbidden")) as broken:
        address = f"http://ann:hidden@{broken.address}/auth?token=hush"
        authenticator = Authenticator(options(auth_http_addresses=(address,)), lambda: 0)
        with pytest.raises(AuthFailed) as caught:
            await authenticator.query(secret=b"s", remote_ip="", tls=False, common_name="")

    assert f"{broken.address}/auth?token=***" in str(caught.value)
    assert not any(secret in str(caught.value) for secret in ("ann", "hidden", "hush"))
