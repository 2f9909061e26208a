"""The permissions that a client needs for each command, in the words of NSQ's auth servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapwing.wire.resp import commands, keys
from lapwing.wire.resp.commands import CommandSpec
from lapwing.wire.resp.errors import ErrorReply

if TYPE_CHECKING:
    from lapwing.sessions.redis_context import Grants

_NO_KEY: Final = "NOPERM No permissions to access a key"
_NO_COMMAND: Final = "NOPERM User {} has no permissions to run the '{}' command"

_PUBLISH: Final = frozenset({"xadd", "xcfgset"})
_ADMIN: Final = frozenset(
    {"del", "unlink", "xdel", "xdelex", "xtrim", "xsetid", "expire", "pexpire", "expireat", "pexpireat"}
)
_GROUP_AT: Final = {  # where the group stands
    "xack": 2, "xackdel": 2, "xnack": 2, "xpending": 2, "xclaim": 2, "xautoclaim": 2, "xgroup|create": 3,
    "xgroup|setid": 3, "xgroup|destroy": 3, "xgroup|createconsumer": 3, "xgroup|delconsumer": 3, "xinfo|consumers": 3,
}  # fmt: skip
_EVERYTHING: Final = frozenset({"flushdb", "flushall", "config|set", "client|kill"})


def check(grants: Grants, spec: CommandSpec, words: list[bytes], database: int) -> None:
    """Raise `ErrorReply` unless the client may run a command on the streams and groups that it names.

    XADD needs `publish` on the topic. Reading, and everything about a group, needs `subscribe` on the topic and the
    channel. Deleting streams and entries needs `admin`.
    """
    if spec.name in _EVERYTHING and not grants.allows("admin", "", ""):
        raise ErrorReply(_NO_COMMAND.format("default", spec.name))
    group = _group(spec, words)
    channel = "" if group is None else keys.channel_of(group) or ""
    permission = "publish" if spec.name in _PUBLISH else "admin" if spec.name in _ADMIN else "subscribe"
    for key in commands.keys_of(spec, words):
        topic = keys.topic_of(key, database)
        if topic is None:
            continue  # there is no such stream, and never will be
        if not grants.allows(permission, topic, channel):
            raise ErrorReply(_NO_KEY)


def _group(spec: CommandSpec, words: list[bytes]) -> bytes | None:
    if spec.name == "xreadgroup":
        for at, word in enumerate(words[:-2]):
            if word.upper() == b"GROUP":
                return words[at + 1]
        return None
    at = _GROUP_AT.get(spec.name, 0)
    return words[at] if 0 < at < len(words) else None
