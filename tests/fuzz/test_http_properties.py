"""Whatever a request to any endpoint of any daemon holds: one answer, in time, and never one that blames us.

The endpoints are those of docs/reference/security.md, which another test compares with the route tables.
A 5xx is an answer only
where it names a reason that lies elsewhere.
"""

import http.client
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from urllib.parse import quote, urlencode

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "docs"))

from test_security_table import endpoints

import daemons

REQUESTS = int(os.environ.get("LAPWING_REQUESTS", "4"))  # per endpoint
SLOW = {"/debug/pprof/profile"}  # take as long as they are asked to
ELSEWHERE = {502, 503, 504}  # upstream or disk; with a reason
NAMES = """topic channel node from to
    limit after count sink batch key part keys filter rate body dry_run action min_idle
    sequence defer binary format setting name metric target range include_clients start stop message at n ids
    max_attempts retry_first"""
KEYS = NAMES.split()
WORDS = """t c orders #ephemeral t#ephemeral t/c .. %00 -1 0 5 1e9 true null 10s pause empty earliest {} [1] ' <b>
    2030-01-31T12:00:00Z"""
TEXTS = [*WORDS.split(), "a" * 65, "", "\N{SNOWMAN}", "9" * 30, "\\"]


def value(random: Random, depth: int = 0) -> object:
    kind = random.randrange(8 if depth < 3 else 5)
    if kind == 0:
        return random.choice([0, 1, -1, 5, 2**31, 2**63, 10**30, 0.5, -1e300])
    if kind == 1:
        return random.choice([None, True, False])
    if kind < 5:
        return random.choice(TEXTS)
    if kind == 5:
        return [value(random, depth + 1) for _ in range(random.randrange(4))]
    return {random.choice(KEYS): value(random, depth + 1) for _ in range(random.randrange(5))}


def request(random: Random, path: str) -> tuple[str, bytes | None]:
    """A path with names and a query, and a body."""
    while "<" in path:
        begin, end = path.index("<"), path.index(">")
        path = path[:begin] + quote(random.choice(TEXTS) or "x", safe="") + path[end + 1 :]
    query = {random.choice(KEYS): random.choice(TEXTS) for _ in range(random.randrange(5))}
    if random.random() < 0.7:
        query |= {"topic": random.choice(["t", "t", "orders", random.choice(TEXTS)]), "channel": "c"}
    body: bytes | None = None
    if random.random() < 0.8:
        document = {"topic": "t", "channel": "c"} | {random.choice(KEYS): value(random) for _ in range(4)}
        body = random.choice([json.dumps(document).encode(), json.dumps(value(random)).encode(), random.randbytes(30)])
    return f"{path}?{urlencode(query, errors='replace')}" if query else path, body


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with (
        daemons.start_nsqlookupd() as lookupd,
        daemons.start_nsqd(
            tmp_path_factory.mktemp("data"), "--max-topics=200", lookupd_tcp_addresses=(lookupd.tcp,)
        ) as nsqd,
        daemons.Daemon(
            [*daemons.program("nsqadmin"), "--http-address=127.0.0.1:0", f"--lookupd-http-address={lookupd.http}"],
            doors=("HTTP",),
        ) as admin,
    ):
        yield {"nsqd": nsqd.http, "nsqlookupd": lookupd.http, "nsqadmin": admin.http}


@pytest.mark.parametrize("daemon", ["nsqd", "nsqlookupd", "nsqadmin"])
def test_every_request_gets_an_answer_that_does_not_blame_us(addresses: dict[str, str], daemon: str) -> None:
    random = Random(f"{daemon} {os.environ.get('LAPWING_SEED', '')}")
    broken: list[str] = []
    connection = http.client.HTTPConnection(addresses[daemon], timeout=60)
    for _ in range(REQUESTS):
        for method, path in endpoints(f"{daemon}, HTTP"):
            target, body = request(random, path)
            if path in SLOW:
                target = f"{path}?seconds=0"
            try:
                connection.request(method, target, body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                text = answer.read()
            except (OSError, http.client.HTTPException) as error:
                broken.append(f"{method} {target} {body!r}: {error!r}")
                connection.close()
                continue
            if answer.status >= 500 and not (answer.status in ELSEWHERE and text):
                broken.append(f"{method} {target} {body!r}: {answer.status} {text[:200]!r}")
    connection.request("GET", "/ping")
    alive = connection.getresponse().read()
    connection.close()

    assert not broken, f"{len(broken)} requests\n" + "\n".join(broken[:20])
    assert alive == b"OK"
