"""Replays `vectors/http-vectors.json`: requests as they were sent to NSQ, and what it answered."""

import base64
import http.client
import json
import re
import time
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parent / "vectors" / "http-vectors.json"
SECONDS = 60.0

Case = dict[str, Any]


def cases(server: str) -> list[Case]:
    """Every case for `nsqd` or `nsqlookupd`."""
    return [case for case in json.loads(VECTORS.read_text()) if case["server"] == server]


def replay(case: Case, address: str) -> None:
    """Go through the steps of a case at `host:port`; raises `AssertionError` where an answer differs."""
    for number, step in enumerate(case["steps"]):
        deadline = time.monotonic() + step.get("retry_ms", 0) / 1000
        while True:
            try:
                _check(step, *_send(step, address))
                break
            except AssertionError as error:
                if time.monotonic() >= deadline:
                    raise AssertionError(f"step {number}, {step['method']} {step['path']}: {error}") from error
                time.sleep(0.01)


def _send(step: dict[str, Any], address: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(address, timeout=SECONDS)
    body = _body(step)
    headers = dict(step.get("headers", {}))
    try:
        try:
            if step.get("chunked"):
                pieces = [body[at : at + 65536] for at in range(0, len(body), 65536)]
                connection.request(step["method"], step["path"], iter(pieces), headers, encode_chunked=True)
            else:
                if step["method"] in ("POST", "PUT"):
                    headers["Content-Length"] = str(len(body))
                connection.request(step["method"], step["path"], body or None, headers)
        except (BrokenPipeError, ConnectionResetError):
            # answered before all was sent: the answer counts
            connection._HTTPConnection__state = "Request-sent"  # type: ignore[attr-defined]
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def _body(step: dict[str, Any]) -> bytes:
    if "body" in step:
        return step["body"].encode()
    if "body_b64" in step:
        return base64.b64decode(step["body_b64"])
    if repeat := step.get("body_repeat"):
        return (repeat.get("prefix", "") + repeat["unit"] * repeat["count"]).encode()
    return b""


def _check(step: dict[str, Any], status: int, headers: dict[str, str], body: bytes) -> None:
    expect = step["expect"]
    allowed = expect["status"] if isinstance(expect["status"], list) else [expect["status"]]
    assert status in allowed, f"status {status} {body[:200]!r}, {allowed} expected"
    for name, wanted in (expect.get("headers") or {}).items():
        assert headers.get(name.lower()) == wanted, f"header {name}: {headers.get(name.lower())!r}, {wanted!r} expected"
    wanted = expect.get("body")
    if wanted is None:
        return
    text = body.decode()
    if isinstance(wanted, str):
        assert text == wanted, f"body {text[:300]!r}, {wanted!r} expected"
    elif isinstance(wanted, dict) and set(wanted) == {"$regex"}:
        assert re.search(wanted["$regex"], text), f"body {text[:600]!r} does not match {wanted['$regex']!r}"
    else:
        contains(json.loads(text), wanted, "body")


def contains(found: Any, wanted: Any, where: str) -> None:
    """Whether `found` holds all of `wanted`, by the rules of the vectors; raises `AssertionError`."""
    if isinstance(wanted, dict) and any(key.startswith("$") for key in wanted):
        _match(found, wanted, where)
    elif isinstance(wanted, dict):
        assert isinstance(found, dict), f"{where}: {found!r} is no object"
        for key, value in wanted.items():
            if value == {"$absent": True}:
                assert key not in found, f"{where}.{key} is there"
            else:
                assert key in found, f"{where}.{key} is missing"
                contains(found[key], value, f"{where}.{key}")
    elif isinstance(wanted, list):
        assert isinstance(found, list), f"{where}: {found!r} is no list"
        assert len(found) == len(wanted), f"{where}: {found!r}, {wanted!r} expected"
        for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
            contains(one, other, f"{where}[{number}]")
    else:
        assert type(found) is type(wanted), f"{where}: {found!r}, {wanted!r} expected"
        assert found == wanted, f"{where}: {found!r}, {wanted!r} expected"


_TYPES: dict[str, Any] = {
    "int": int, "number": (int, float), "string": str, "bool": bool, "array": list, "object": dict,
}  # fmt: skip


def _match(found: Any, matcher: dict[str, Any], where: str) -> None:
    if "$type" in matcher:
        fits = isinstance(found, _TYPES[matcher["$type"]]) and (matcher["$type"] == "bool") == isinstance(found, bool)
        assert fits, f"{where}: {found!r} is no {matcher}"
    if "$regex" in matcher:
        fits = isinstance(found, str) and re.search(matcher["$regex"], found) is not None
        assert fits, f"{where}: {found!r} is no {matcher}"
    for wanted in matcher.get("$contains", ()):
        assert any(_holds(one, wanted, where) for one in found), f"{where}: nothing in {found!r} is {wanted!r}"


def _holds(found: Any, wanted: Any, where: str) -> bool:
    try:
        contains(found, wanted, where)
    except AssertionError:
        return False
    return True
