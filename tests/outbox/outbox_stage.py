"""An nsqd whose topics store a message-id once."""

import json
import urllib.request
from collections.abc import Iterator

import pytest

import daemons


@pytest.fixture(scope="session")
def nsqd() -> Iterator[daemons.Daemon]:
    with daemons.nsqd() as daemon:
        policy = {"topics": "*", "settings": {"dedup_window": "1h"}}
        request = urllib.request.Request(f"{daemon.url}/policies/once", json.dumps(policy).encode(), method="PUT")
        urllib.request.urlopen(request).close()
        yield daemon


def stored(daemon: daemons.Daemon, topic: str) -> list[tuple[str, dict[str, str]]]:
    """Body and headers of every message of a topic."""
    with urllib.request.urlopen(f"{daemon.url}/log/read?topic={topic}&from=0&format=json") as answer:
        return [(message["body"], message["headers"]) for message in json.load(answer)["messages"]]
