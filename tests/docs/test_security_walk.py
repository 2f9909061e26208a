"""The tables of docs/reference/security.md are true of running daemons.

Every row is called without a secret, with secrets that do not suffice, and with secrets that just suffice.
"""

import asyncio
import http.client
import json
import re
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlencode, urlsplit

from daemons import Daemon, nsqd
from documents import security_table
from http_double import HttpDouble, reply
from lapwing.sessions.redis.authorization import access_of
from lapwing.wire.nsq.commands import Dpub, Hmpub, Hpub, Mpub, Pub, Sub
from lapwing.wire.resp.commands import SCRIPTS, CommandSpec, all_specs

TOPIC, CHANNEL = "orders", "billing"
PERMISSIONS = ("publish", "subscribe", "admin")


def secret(permissions: list[str], topic: str, channel: str) -> str:
    """A secret that the auth server grants exactly this for."""
    return f"{'+'.join(permissions) or 'nothing'} {topic} {channel}"


def granted(method: str, target: str, headers: dict[str, str], body: bytes) -> bytes:
    permissions, topic, channel = parse_qs(urlsplit(target).query)["secret"][0].split(" ")
    known = [each for each in permissions.split("+") if each in ("publish", "subscribe")]
    grant = {"topic": topic, "channels": [channel], "permissions": known, "admin": "admin" in permissions}
    return reply({"ttl": 3600, "identity": "x", "authorizations": [] if permissions == "nothing" else [grant]})


def secrets(permission: str, scope: str) -> tuple[list[str], list[str]]:
    """Secrets that do not suffice, and secrets of which each does."""
    needed = permission.split(" or ")
    others = [each for each in PERMISSIONS if each not in needed]
    if scope == "any":
        return [secret([], ".*", ".*")], [secret([each], "^other$", "^other$") for each in needed]
    topic, channel = ("^$", "^$") if scope == "node" else (f"^{TOPIC}$", f"^{CHANNEL}$" if scope == "channel" else "^$")
    wrong = [secret(needed, "^other$", ".*"), secret(needed, ".*", "^other$")]
    if others:
        wrong.append(secret(others, ".*", ".*"))
    return wrong, [secret([each], topic, channel) for each in needed]


@asynccontextmanager
async def guarded() -> AsyncIterator[Daemon]:
    async with HttpDouble(granted) as auth:
        with nsqd(f"--auth-http-address={auth.address}", "--redis-address=127.0.0.1:0") as daemon:
            yield daemon


# --- HTTP ----------------------------------------------------------------------------------------------------------


def status(daemon: Daemon, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> int:
    connection = http.client.HTTPConnection(daemon.http, timeout=60)
    connection.request(method, path, body, headers)
    found = connection.getresponse().status
    connection.close()
    return found


async def test_every_endpoint_of_nsqd_asks_for_the_permission_of_the_table() -> None:
    query = urlencode({"topic": TOPIC, "channel": CHANNEL, "seconds": "1"})
    failures = []
    async with guarded() as daemon:

        async def call(method: str, path: str, value: str | None) -> int:
            headers = {} if value is None else {"Authorization": f"Bearer {value}"}
            target = re.sub("<.*>", "log_level" if "config" in path else "p", path)
            return await asyncio.to_thread(status, daemon, method, f"{target}?{query}", headers)

        for method, path, permission, scope in security_table("nsqd, HTTP"):
            needed = re.split("[;(]", permission)[0].strip()
            if needed == "everybody":
                found = [await call(method, path, None) == 200]
            else:
                wrong, right = secrets(needed, scope)
                found = [await call(method, path, None) == 401]
                found += [await call(method, path, each) == 403 for each in wrong]
                if not path.startswith("/debug/pprof/profile"):  # it takes a second
                    found += [await call(method, path, each) not in (401, 403) for each in right]
            if not all(found):
                failures.append((method, path, found))

    assert failures == []


# --- Redis ---------------------------------------------------------------------------------------------------------


def words(spec: CommandSpec) -> list[str]:
    """A request of the fewest words, about one stream and group."""
    if spec.name in ("xread", "xreadgroup"):
        group = ["GROUP", CHANNEL, "me"] if spec.name == "xreadgroup" else []
        return [spec.name, *group, "STREAMS", TOPIC, ">" if group else "0"]
    if spec.name in SCRIPTS:
        return [spec.name, "0" * 40, "1", TOPIC]
    found = spec.name.split("|")
    found += ["1"] * (abs(spec.arity) - len(found))
    if spec.keys[0]:
        found[spec.keys[0]] = TOPIC
    if access_of(spec)[1] == "channel":
        found[spec.keys[0] + 1] = CHANNEL
    if spec.name == "xackdel":
        found[3:] = ["ACKED", "IDS", "1", "1-1"]
    return found


async def ask(daemon: Daemon, value: str | None, request: list[str]) -> str:
    """The first line of the reply to a request, on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(daemon.addresses["Redis"].rpartition(":")[2]))
    for each in ([] if value is None else [["AUTH", value]]) + [request]:
        writer.write(f"*{len(each)}\r\n".encode() + b"".join(b"$%d\r\n%b\r\n" % (len(w), w.encode()) for w in each))
        line = (await asyncio.wait_for(reader.readline(), 60)).decode()
        if each is not request and line != "+OK\r\n":
            break  # AUTH was refused
    writer.close()
    return line.split(" ")[0]


async def test_every_redis_command_asks_for_the_permission_of_the_table() -> None:
    specs = {spec.name: spec for spec in all_specs()}
    failures = []
    async with guarded() as daemon:
        for name, permission, scope in security_table("nsqd, Redis"):
            spec = specs[name.lower().replace(" ", "|")]
            request = words(spec)
            needed = permission.split(";")[0]
            if needed == "everybody":
                if name in ("AUTH", "HELLO"):
                    value = secret(["publish"], ".*", ".*")
                    request = ["AUTH", value] if name == "AUTH" else ["HELLO", "3", "AUTH", "default", value]
                found = [await ask(daemon, None, request)]
                good = not found[0].startswith("-")
            else:
                wrong, right = secrets(needed, scope)
                found = [await ask(daemon, value, request) for value in (None, *wrong, *right)]
                denied = "-WRONGPASS" if scope == "any" else "-NOPERM"  # without an authorization AUTH fails
                good = found[0] == "-NOAUTH" and set(found[1 : len(wrong) + 1]) == {denied}
                good = good and not {"-NOAUTH", "-NOPERM", "-WRONGPASS"} & set(found[len(wrong) + 1 :])
            if not good:
                failures.append((name, found))

    assert failures == []


# --- NSQ -----------------------------------------------------------------------------------------------------------

GUARDED = {  # a command, and the permission that it needs
    "PUB": (Pub(TOPIC, b"x"), "publish"),
    "MPUB": (Mpub.of(TOPIC, [b"x"]), "publish"),
    "DPUB": (Dpub(TOPIC, 1_000_000, b"x"), "publish"),
    "HPUB": (Hpub.of(TOPIC, b"{}", b"x"), "publish"),
    "HMPUB": (Hmpub.of(TOPIC, [(b"{}", b"x")]), "publish"),
    "SUB": (Sub(TOPIC, CHANNEL), "subscribe"),
}
NEEDS_SUB = {"RDY": "RDY 1", "CLS": "CLS"} | {
    word: f"{word} {'0' * 16}{' 0' * (word == 'REQ')}" for word in ("FIN", "REQ", "TOUCH", "REJ")
}
IDENTIFY = json.dumps({"feature_negotiation": True, "headers": True, "reject": True}).encode()


async def talk(daemon: Daemon, value: str | None, command: bytes) -> str:
    """The answer to a command behind IDENTIFY and AUTH."""
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.tcp_port)
    writer.write(b"  V2IDENTIFY\n" + struct.pack(">I", len(IDENTIFY)) + IDENTIFY)
    answer = await frame(reader)
    assert '"headers":true' in answer, answer
    if value is not None:
        writer.write(b"AUTH\n" + struct.pack(">I", len(value)) + value.encode())
        assert "permission_count" in await frame(reader)
    writer.write(command)
    answer = await frame(reader)
    writer.close()
    return answer


async def frame(reader: asyncio.StreamReader) -> str:
    (size,) = struct.unpack(">I", await asyncio.wait_for(reader.readexactly(4), 60))
    return (await reader.readexactly(size))[4:].decode()


async def test_every_tcp_command_asks_for_the_permission_of_the_table() -> None:
    listed = {row[0] for row in security_table("nsqd, TCP")}
    assert listed == {"IDENTIFY", "AUTH", "NOP", *GUARDED, *NEEDS_SUB}  # `talk` sends the first two

    async with guarded() as daemon:
        for word, (command, permission) in GUARDED.items():
            wrong, (right,) = secrets(permission, "channel" if word == "SUB" else "topic")
            data = command.encode()

            assert (await talk(daemon, None, data)).startswith("E_AUTH_FIRST"), word
            for value in wrong:
                assert (await talk(daemon, value, data)).startswith("E_UNAUTHORIZED"), (word, value)
            assert await talk(daemon, right, data) == "OK", word
        anything = secret(list(PERMISSIONS), ".*", ".*")
        for word, line in NEEDS_SUB.items():
            assert (await talk(daemon, anything, f"NOP\n{line}\n".encode())).startswith("E_INVALID"), word
