"""The permissions that a client needs for each command, in the words of NSQ's auth servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapwing.wire.resp import commands, keys
from lapwing.wire.resp.commands import CommandSpec
from lapwing.wire.resp.errors import ErrorReply
from lapwing.wire.resp.parse_reads import parse_xread
from lapwing.wire.resp.parse_writes import References, parse_xackdel, parse_xadd

if TYPE_CHECKING:
    from lapwing.sessions.redis.context import Grants

_NO_KEY: Final = "NOPERM No permissions to access a key"
_NO_COMMAND: Final = "NOPERM User {} has no permissions to run the '{}' command"

_PUBLISH: Final = frozenset({"xadd", "xcfgset"})
_ADMIN: Final = frozenset(
    {"del", "unlink", "xdel", "xdelex", "xtrim", "xsetid", "expire", "pexpire", "expireat", "pexpireat"}
    | {"xgroup|destroy"}
)
_READS: Final = frozenset({"xread", "xreadgroup"})  # their keys and group stand behind options
_GROUP_AT: Final = {  # where the group stands
    "xack": 2, "xackdel": 2, "xnack": 2, "xpending": 2, "xclaim": 2, "xautoclaim": 2, "xgroup|create": 3,
    "xgroup|setid": 3, "xgroup|destroy": 3, "xgroup|createconsumer": 3, "xgroup|delconsumer": 3, "xinfo|consumers": 3,
}  # fmt: skip
_EVERYTHING: Final = frozenset({"flushdb", "flushall", "config|set", "client|kill", "client|list", "client|unblock"})


def access_of(spec: CommandSpec) -> tuple[str, str]:
    """Return the permission that a command needs, and what for: `topic`, `channel`, or `node` for the whole node.

    Both are empty if every client with a password may send the command. docs/reference/security.md has the table.
    """
    if spec.name in _EVERYTHING:
        return "admin", "node"
    if not spec.keys[0] and spec.name not in _READS and spec.name not in commands.SCRIPTS:
        return "", ""
    permission = "publish" if spec.name in _PUBLISH else "admin" if spec.name in _ADMIN else "subscribe"
    return permission, "channel" if spec.name in _GROUP_AT or spec.name == "xreadgroup" else "topic"


def check(grants: Grants, spec: CommandSpec, words: list[bytes], database: int) -> None:
    """Raise `ErrorReply` unless the client may run a command on the streams and groups that it names.

    XADD needs `publish` on the topic. Reading, and everything about a group, needs `subscribe` on the topic and the
    channel, and so does a lock, as if it were a topic. Deleting streams, groups and entries needs `admin`.
    """
    permission, scope = access_of(spec)
    if scope == "node" and not grants.allows(permission, "", ""):
        raise ErrorReply(_NO_COMMAND.format("default", spec.name))
    if scope not in ("topic", "channel"):
        return
    found, group = _named(spec, words)
    channel = "" if group is None else keys.channel_of(group) or ""
    for key in found:
        topic = keys.topic_of(key, database)
        if topic is None:
            if spec.group == "stream":
                continue  # there is no such stream, and never will be
            raise ErrorReply(_NO_KEY)  # there may be a lock, and no permission can name it
        if not grants.allows(permission, topic, channel):
            raise ErrorReply(_NO_KEY)
        if _deletes_unfinished(spec, words) and not grants.allows("admin", topic, channel):
            raise ErrorReply(_NO_KEY)


def _named(spec: CommandSpec, words: list[bytes]) -> tuple[list[bytes], bytes | None]:
    """Return the keys and the group of a request, exactly as they will be read. Raises `ErrorReply`."""
    if spec.name in _READS:
        asked = parse_xread(words)
        return asked.keys, asked.group
    at = _GROUP_AT.get(spec.name, 0)
    return commands.keys_of(spec, words), words[at] if 0 < at < len(words) else None


def _deletes_unfinished(spec: CommandSpec, words: list[bytes]) -> bool:
    """Return whether an XADD or XACKDEL may delete entries that other groups have not finished. Raises `ErrorReply`."""
    if spec.name == "xackdel":
        return parse_xackdel(words).references is not References.ACKED
    if spec.name != "xadd" or words[2] == b"*":
        return False
    trim = parse_xadd(words).trim
    if trim is None or trim.references is References.ACKED:
        return False
    return trim.references is not None or (trim.max_length == 0 and not trim.approximate)
