"""Every recorded conversation with a Redis server, held again with ours."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis_replay import play
from test_nsqd_vectors import AuthServer

from daemons import Daemon, start_nsqd

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "vectors" / "redis-vectors.json").read_text()
)

# docs/reference/redis.md has the reason for each
REFUSED = {
    "expire": "streams have no end",
    "rename": "topics keep their name",
    "wrongtype_all": "there are streams and nothing else",
    "strlen_free_set_over": "there are streams and nothing else",
    "life_pubsub": "there is no publish and subscribe",
    "life_eval": "there are no scripts",
    "xinfo_groups_lag_deleted": "the lag is known although entries were deleted",
}
SERVED = [case for case in CASES if case["name"] not in REFUSED]

PASSWORD = "sesame"
EVERYTHING = {
    "status": 200,
    "body": {
        "ttl": 3600,
        "identity": "default",
        "authorizations": [
            {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"], "admin": True}
        ],
    },
}


class Servers:
    """An nsqd as it is, one with Redis's rules for trimming, and one that asks for a password."""

    def __init__(self, folder: Path) -> None:
        self.auth = AuthServer()
        self.auth.answers[PASSWORD] = [EVERYTHING]
        flags = ["--redis-address=127.0.0.1:0", "--max-msg-size=4194304"]
        for name in ("open", "trimming", "closed"):
            (folder / name).mkdir()
        self.open = start_nsqd(folder / "open", *flags)
        self.trimming = start_nsqd(folder / "trimming", "--redis-trim-unread", *flags)
        self.closed = start_nsqd(folder / "closed", f"--auth-http-address={self.auth.address}", *flags)

    def address(self, case: dict[str, Any]) -> tuple[str, int]:
        if case.get("server") == "auth":
            daemon = self.closed
        else:
            daemon = self.trimming if "trim-unread" in case.get("needs", ()) else self.open
        host, _, port = daemon.addresses["Redis"].rpartition(":")
        return host, int(port)

    @property
    def daemons(self) -> list[Daemon]:
        return [self.open, self.trimming, self.closed]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    servers = Servers(tmp_path_factory.mktemp("redis"))
    yield servers
    for daemon in servers.daemons:
        daemon.kill()
    servers.auth.server.shutdown()
    servers.auth.server.server_close()


@pytest.mark.parametrize("case", SERVED, ids=[case["name"] for case in SERVED])
def test_redis_conversation(case: dict[str, Any], servers: Servers) -> None:
    password = PASSWORD if case.get("server") == "auth" else None
    play(case, servers.address(case), password)

    assert all(daemon.process.poll() is None for daemon in servers.daemons)


def test_only_what_the_documents_name_is_refused() -> None:
    documents = (Path(__file__).parent.parent.parent / "docs" / "reference" / "redis.md").read_text()
    tags = {tag for case in CASES for tag in case.get("needs", ()) if case["name"] in REFUSED}

    assert all(case.get("needs") for case in CASES if case["name"] in REFUSED)
    for tag in tags - {"xdel"}:  # which is there, but for one case that has both
        assert f"`{tag}`" in documents
    assert "`trim-unread`" in documents
