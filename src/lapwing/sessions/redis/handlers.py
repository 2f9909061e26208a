"""The table of the functions that carry out commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from lapwing.sessions.redis import commands as table
from lapwing.sessions.redis import groups, keys, locks, server, streams
from lapwing.sessions.redis import info_streams as shown
from lapwing.sessions.redis.readgroup import xreadgroup
from lapwing.sessions.redis.replies import Reply
from lapwing.wire.resp import replies

if TYPE_CHECKING:
    from lapwing.sessions.redis.client_state import ClientState

Handler = Callable[["ClientState", list[bytes], int], Reply]


def _always(reply: bytes) -> Handler:
    """Return the handler of a command that has no effect here."""
    return lambda session, words, now: reply


HANDLERS: Final[dict[str, Handler]] = {
    "xadd": streams.xadd,
    "xlen": streams.xlen,
    "xrange": streams.xrange,
    "xrevrange": streams.xrange,
    "xread": streams.xread,
    "xdel": streams.xdel,
    "xtrim": streams.xtrim,
    "xsetid": streams.xsetid,
    "xcfgset": streams.xcfgset,
    "xreadgroup": xreadgroup,
    "xack": groups.acknowledge,
    "xackdel": groups.acknowledge_and_delete,
    "xdelex": groups.delete_entries,
    "xnack": groups.nack,
    "xpending": groups.pending,
    "xclaim": groups.claim,
    "xautoclaim": groups.autoclaim,
    "xgroup|create": groups.create,
    "xgroup|setid": groups.set_id,
    "xgroup|destroy": groups.destroy,
    "xgroup|createconsumer": groups.create_consumer,
    "xgroup|delconsumer": groups.delete_consumer,
    "xinfo|stream": shown.show_stream,
    "xinfo|groups": shown.show_groups,
    "xinfo|consumers": shown.show_consumers,
    "auth": server.authenticate,
    "hello": server.hello,
    "ping": server.ping,
    "echo": server.echo,
    "quit": server.leave,
    "reset": server.reset,
    "select": server.select,
    "client|getname": server.get_name,
    "client|setname": server.set_name,
    "client|setinfo": server.set_info,
    "client|id": server.client_id,
    "client|info": server.client_info,
    "client|list": server.client_list,
    "client|kill": server.client_kill,
    "client|no-evict": server.switch,
    "client|no-touch": server.switch,
    "client|reply": server.reply_mode,
    "client|unblock": server.unblock,
    "command": table.everything,
    "command|count": table.count,
    "command|docs": table.docs,
    "command|info": table.info,
    "command|list": table.names,
    "command|getkeys": table.get_keys,
    "info": server.info,
    "config|get": server.config_get,
    "config|set": server.config_set,
    "config|resetstat": _always(replies.OK),
    "time": server.time,
    "role": _always(replies.array([replies.text("master"), replies.integer(0), replies.EMPTY])),
    "dbsize": keys.size,
    "wait": server.wait,
    "waitaof": server.wait_aof,
    "acl|whoami": server.who_am_i,
    "memory|usage": keys.memory_usage,
    "cluster": server.cluster,
    "flushdb": keys.flush,
    "flushall": keys.flush,
    "type": keys.kind,
    "exists": keys.exists,
    "touch": keys.exists,
    "del": keys.delete,
    "unlink": keys.delete,
    "keys": keys.keys,
    "scan": keys.scan,
    "randomkey": keys.random_key,
    "ttl": keys.time_to_live,
    "pttl": keys.time_to_live,
    "expiretime": keys.time_to_live,
    "pexpiretime": keys.time_to_live,
    "persist": keys.persist,
    "expire": keys.expire,
    "pexpire": keys.expire,
    "expireat": keys.expire,
    "pexpireat": keys.expire,
    "get": keys.get,
    "set": locks.set_lock,
    "eval": locks.evaluate,
    "evalsha": locks.evaluate_loaded,
    "script|load": locks.load,
    "script|exists": locks.loaded,
    "script|flush": _always(replies.OK),
    "object|encoding": keys.inspect,
    "object|refcount": keys.inspect,
    "object|idletime": keys.inspect,
    "object|freq": keys.inspect,
    "multi": keys.multi,
    "exec": keys.execute,
    "discard": keys.discard,
    "watch": keys.watch,
    "unwatch": keys.unwatch,
    **{f"{each}|help": table.show_help for each in ("xgroup", "xinfo", "client", "command", "config", "acl", "memory")},
    "object|help": table.show_help,
    "script|help": table.show_help,
}
