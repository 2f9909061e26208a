"""Whatever is sent, the answer is a refusal or a result; never a fault of ours."""

import asyncio
import contextlib
import json
from typing import Any

from doors import Node, settle, whole
from hypothesis import given, settings
from hypothesis import strategies as st

from example_counts import examples
from lapwing.errors import LapwingError
from lapwing.net.server.requests import BadEscape, escape
from lapwing.nsqd.doors.auth import understand

PATHS = [
    ("GET", "/ping"), ("GET", "/info"), ("GET", "/stats"), ("GET", "/metrics"), ("GET", "/pipelines"),
    ("GET", "/config/log_level"), ("PUT", "/config/log_level"), ("PUT", "/config/nsqlookupd_tcp_addresses"),
    ("POST", "/pub"), ("POST", "/mpub"), ("POST", "/pipelines/p"), ("PUT", "/debug/setblockrate"),
    *(("POST", f"/topic/{order}") for order in ("create", "delete", "empty", "pause", "unpause")),
    *(("POST", f"/channel/{order}") for order in ("create", "delete", "empty", "pause", "unpause")),
]  # fmt: skip
NAMES = ["topic", "channel", "defer", "binary", "format", "include_clients", "include_mem", "rate", "other"]
VALUES = ["t", "u", "c", "t#ephemeral", "c#ephemeral", "json", "text", "true", "0", "", "5", "-1", "9" * 25, "bad name"]

words = st.one_of(st.sampled_from(VALUES), st.text(max_size=70)).map(escape)
raw = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="#"), max_size=20)
queries = st.one_of(
    st.lists(st.tuples(st.sampled_from(NAMES), words), max_size=4).map(
        lambda pairs: "&".join(f"{name}={value}" for name, value in pairs)
    ),
    raw,
)
bodies = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"x", b"a\nb\n", b"\0\0\0\1\0\0\0\1a", b"\0\0\0\2\0\0\0\1a", b"{}"]),
)
headers = st.one_of(st.just([]), st.binary(max_size=30).map(lambda value: [(b"x-lapwing-headers", value)]))
requests = st.lists(st.tuples(st.sampled_from(PATHS), queries, bodies, headers), min_size=1, max_size=12)


@settings(max_examples=examples(150))
@given(requests)
def test_no_history_of_requests_ends_in_an_internal_error(history: list[Any]) -> None:
    async def talk() -> None:
        node = Node()
        for (method, path), query, body, extra in history:
            with contextlib.suppress(BadEscape):  # no request at all: the server refuses it before there is a route
                answer = await settle(node.request(method, f"{path}?{query}", body, extra))
                content = await whole(answer)
                assert answer.status in (200, 400, 403, 404, 413), (method, path, query, body, answer)
                if answer.status != 200 and path != "/debug/setblockrate":
                    assert json.loads(content)["message"].isupper()
        for topic in node.broker.topics.values():
            assert topic.depth >= 0
            assert all(channel.depth >= 0 for channel in topic.channels.values())

    asyncio.run(talk())


KEYS = ["ttl", "identity", "authorizations", "topic", "channels", "permissions"]
documents = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=10)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    ),
    max_leaves=12,
)


@settings(max_examples=examples(300))
@given(documents)
def test_whatever_an_auth_server_says_is_understood_or_refused(document: Any) -> None:
    with contextlib.suppress(LapwingError):
        understand(document, b"s", now=0).allows("publish", "topic", "")
