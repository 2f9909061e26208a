"""Every command that is understood: how many words it takes, where its keys are, and what COMMAND shows of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lapwing.wire.resp import errors
from lapwing.wire.resp.errors import ErrorReply


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """One command, or one subcommand of it, whose name then is `xgroup|create`."""

    name: str
    arity: int  # words, the name included; negative: at least so many
    summary: str
    flags: tuple[str, ...] = ()
    keys: tuple[int, int, int] = (0, 0, 0)  # place of the first key, of the last (negative: from the end), step
    since: str = "1.0.0"
    group: str = "server"
    complexity: str = "O(1)"
    syntax: str = ""
    subcommands: tuple[CommandSpec, ...] = ()

    def takes(self, words: int) -> bool:
        """Return whether the command can have so many words."""
        return words == self.arity if self.arity >= 0 else words >= -self.arity


def find(words: list[bytes]) -> CommandSpec:
    """Return the command, or the subcommand, that a request names. Raises `ErrorReply`."""
    spec = COMMANDS.get(words[0].lower())
    if spec is None:
        raise errors.unknown_command(words)
    if spec.subcommands and len(words) > 1:
        sub = SUBCOMMANDS.get((spec.name, words[1].lower()))
        if sub is None:
            raise errors.unknown_subcommand(spec.name, words[1])
        spec = sub
    if not spec.takes(len(words)):
        raise errors.wrong_arity(spec.name)
    return spec


def keys_of(spec: CommandSpec, words: list[bytes]) -> list[bytes]:
    """Return the keys that a request names. Raises `ErrorReply`."""
    if spec.name in ("xread", "xreadgroup"):
        for at, word in enumerate(words):
            if at and word.upper() == b"STREAMS":
                return words[at + 1 : at + 1 + (len(words) - at - 1) // 2]
        raise ErrorReply("ERR Invalid arguments specified for command")
    first, last, step = spec.keys
    if not first:
        return []
    return words[first : (last + 1 if last >= 0 else len(words) + last + 1) : step]


def _stream(
    name: str,
    arity: int,
    syntax: str,
    summary: str,
    *flags: str,
    since: str = "5.0.0",
    key: int = 1,
    complexity: str = "O(1)",
    subcommands: tuple[CommandSpec, ...] = (),
) -> CommandSpec:
    keys = (key, key, 1) if key else (0, 0, 0)
    return CommandSpec(name, arity, summary, flags, keys, since, "stream", complexity, syntax, subcommands)


def _sub(name: str, arity: int, syntax: str, summary: str, *flags: str, since: str, key: int = 0) -> CommandSpec:
    keys = (key, key, 1) if key else (0, 0, 0)
    group = "stream" if name.startswith("x") else "connection" if name.startswith("client") else "server"
    return CommandSpec(name, arity, summary, flags, keys, since, group, "O(1)", syntax)


def _help(name: str, since: str) -> CommandSpec:
    return _sub(f"{name}|help", 2, "", "Show the subcommands.", since=since)


_N: Final = "O(N) with N entries or ids that are looked at"
_REFERENCES: Final = "[KEEPREF | DELREF | ACKED]"
_TRIM: Final = "<MAXLEN | MINID> [= | ~] threshold [LIMIT count]"

_TABLE: Final[tuple[CommandSpec, ...]] = (
    # --- streams ---
    _stream(
        "xadd", -5,
        f"key [NOMKSTREAM] {_REFERENCES} [IDMPAUTO pid | IDMP pid iid] [{_TRIM}] <* | id> field value [...]",
        "Publish an entry.", "write", "denyoom", "fast",
    ),
    _stream("xlen", 2, "key", "Return how many entries a stream has.", "readonly", "fast"),
    _stream(
        "xrange", -4, "key start end [COUNT count]", "Return the entries of a range of ids.", "readonly",
        complexity=_N,
    ),
    _stream(
        "xrevrange", -4, "key end start [COUNT count]", "Return the entries of a range of ids, the last one first.",
        "readonly", complexity=_N,
    ),
    _stream(
        "xread", -4, "[COUNT count] [MAXCOUNT count] [MAXSIZE bytes] [BLOCK milliseconds] STREAMS key [...] id [...]",
        "Return the entries beyond an id, waiting for one if asked.", "readonly", "blocking", "movablekeys", key=0,
        complexity=_N,
    ),
    _stream(
        "xreadgroup", -7,
        "GROUP group consumer [COUNT count] [MAXCOUNT count] [MAXSIZE bytes] [BLOCK milliseconds] "
        "[CLAIM min-idle-time] [NOACK] STREAMS key [...] id [...]",
        "Deliver entries to a consumer of a group.", "write", "blocking", "movablekeys", key=0, complexity=_N,
    ),
    _stream("xack", -4, "key group id [...]", "Finish pending entries.", "write", "fast", complexity=_N),
    _stream(
        "xackdel", -6, f"key group {_REFERENCES} IDS numids id [...]", "Finish pending entries and delete them.",
        "write", "fast", since="8.2.0", complexity=_N,
    ),
    _stream(
        "xnack", -7, "key group <SILENT | FAIL | FATAL> IDS numids id [...] [RETRYCOUNT count] [FORCE]",
        "Give pending entries back to the group.", "write", "fast", since="8.8.0", complexity=_N,
    ),
    _stream("xdel", -3, "key id [...]", "Delete entries.", "write", "fast", complexity=_N),
    _stream(
        "xdelex", -5, f"key {_REFERENCES} IDS numids id [...]",
        "Delete entries, with a choice of what groups keep of them.", "write", "fast", since="8.2.0", complexity=_N,
    ),
    _stream("xtrim", -4, f"key {_TRIM} {_REFERENCES}", "Delete the oldest entries.", "write", complexity=_N),
    _stream(
        "xsetid", -3, "key last-id [ENTRIESADDED entries-added] [MAXDELETEDID max-deleted-id]",
        "Set the last id of a stream.", "write", "denyoom", "fast",
    ),
    _stream(
        "xcfgset", -4, "key [IDMP-DURATION seconds] [IDMP-MAXSIZE count]",
        "Set how long producers' ids are remembered.", "write", "denyoom", "fast", since="8.6.0",
    ),
    _stream(
        "xpending", -3, "key group [[IDLE min-idle-time] start end count [consumer]]",
        "Show what is pending in a group.", "readonly", complexity=_N,
    ),
    _stream(
        "xclaim", -6,
        "key group consumer min-idle-time id [...] [IDLE ms] [TIME unix-time-milliseconds] [RETRYCOUNT count] [FORCE] "
        "[JUSTID] [LASTID lastid]",
        "Take pending entries over.", "write", "fast", complexity=_N,
    ),
    _stream(
        "xautoclaim", -6, "key group consumer min-idle-time start [COUNT count] [JUSTID]",
        "Take over what was pending for long.", "write", "fast", since="6.2.0", complexity=_N,
    ),
    _stream(
        "xgroup", -2, "", "Create, move and delete groups.", key=0,
        subcommands=(
            _sub(
                "xgroup|create", -5, "key group <id | $> [MKSTREAM] [ENTRIESREAD entries-read]", "Create a group.",
                "write", "denyoom", since="5.0.0", key=2,
            ),
            _sub(
                "xgroup|setid", -5, "key group <id | $> [ENTRIESREAD entries-read]", "Move a group to an id.", "write",
                since="5.0.0", key=2,
            ),
            _sub("xgroup|destroy", 4, "key group", "Delete a group.", "write", since="5.0.0", key=2),
            _sub(
                "xgroup|createconsumer", 5, "key group consumer", "Create a consumer.", "write", "denyoom",
                since="6.2.0", key=2,
            ),
            _sub(
                "xgroup|delconsumer", 5, "key group consumer", "Delete a consumer with all that is pending with it.",
                "write", since="5.0.0", key=2,
            ),
            _help("xgroup", "5.0.0"),
        ),
    ),
    _stream(
        "xinfo", -2, "", "Show streams, groups and consumers.", key=0,
        subcommands=(
            _sub("xinfo|stream", -3, "key [FULL [COUNT count]]", "Show a stream.", "readonly", since="5.0.0", key=2),
            _sub("xinfo|groups", 3, "key", "Show the groups of a stream.", "readonly", since="5.0.0", key=2),
            _sub("xinfo|consumers", 4, "key group", "Show the consumers of a group.", "readonly", since="5.0.0", key=2),
            _help("xinfo", "5.0.0"),
        ),
    ),
    # --- connections ---
    CommandSpec(
        "auth", -2, "Authenticate.", ("noscript", "fast", "no_auth"), syntax="[username] password",
        group="connection",
    ),
    CommandSpec(
        "hello", -1, "Choose the protocol, and authenticate.", ("noscript", "fast", "no_auth"), since="6.0.0",
        syntax="[protover [AUTH username password] [SETNAME clientname]]", group="connection",
    ),
    CommandSpec("ping", -1, "Return PONG.", ("fast",), syntax="[message]", group="connection"),
    CommandSpec("echo", 2, "Return the message.", ("fast",), syntax="message", group="connection"),
    CommandSpec("quit", -1, "Close the connection.", ("noscript", "fast", "no_auth"), group="connection"),
    CommandSpec(
        "reset", 1, "Begin as a new connection does.", ("noscript", "fast", "no_auth"), since="6.2.0",
        group="connection",
    ),
    CommandSpec("select", 2, "Choose a database.", ("fast",), syntax="index", group="connection"),
    CommandSpec(
        "client", -2, "Show and change connections.", since="2.4.0", group="connection",
        subcommands=(
            _sub("client|getname", 2, "", "Return the connection's name.", since="2.6.9"),
            _sub("client|setname", 3, "connection-name", "Name the connection.", since="2.6.9"),
            _sub("client|setinfo", 4, "<LIB-NAME libname | LIB-VER libver>", "Name the client library.", since="7.2.0"),
            _sub("client|id", 2, "", "Return the connection's number.", since="5.0.0"),
            _sub("client|info", 2, "", "Show the connection.", since="6.2.0"),
            _sub("client|list", -2, "[TYPE type] [ID client-id [...]]", "Show all connections.", since="2.4.0"),
            _sub("client|kill", -3, "<ip:port | filters>", "Close connections.", since="2.4.0"),
            _sub("client|no-evict", 3, "<ON | OFF>", "Do nothing: no memory is evicted.", since="7.0.0"),
            _sub("client|no-touch", 3, "<ON | OFF>", "Do nothing: no access times are kept.", since="7.2.0"),
            _sub("client|reply", 3, "<ON | OFF | SKIP>", "Choose whether commands are answered.", since="3.2.0"),
            _sub("client|unblock", -3, "client-id [TIMEOUT | ERROR]", "End another connection's wait.", since="5.0.0"),
            _help("client", "5.0.0"),
        ),
    ),
    # --- the server ---
    CommandSpec(
        "command", -1, "Show the commands.", since="2.8.13",
        subcommands=(
            _sub("command|count", 2, "", "Return how many commands there are.", since="2.8.13"),
            _sub("command|docs", -2, "[command-name [...]]", "Describe commands.", since="7.0.0"),
            _sub("command|info", -2, "[command-name [...]]", "Show commands.", since="2.8.13"),
            _sub("command|list", -2, "", "Return the names of the commands.", since="7.0.0"),
            _sub("command|getkeys", -3, "command [arg [...]]", "Return the keys of a command.", since="2.8.13"),
            _help("command", "5.0.0"),
        ),
    ),
    CommandSpec("info", -1, "Show the state of the server.", syntax="[section [...]]"),
    CommandSpec(
        "config", -2, "Show settings.", since="2.0.0",
        subcommands=(
            _sub("config|get", -3, "parameter [...]", "Return settings.", "admin", since="2.0.0"),
            _sub(
                "config|set", -4, "parameter value [...]", "Accept known settings without an effect.", "admin",
                since="2.0.0",
            ),
            _sub("config|resetstat", 2, "", "Do nothing.", "admin", since="2.0.0"),
            _help("config", "5.0.0"),
        ),
    ),
    CommandSpec("time", 1, "Return the time.", ("fast",), since="2.6.0"),
    CommandSpec("role", 1, "Return the role in a replication.", ("fast",), since="2.8.12"),
    CommandSpec("dbsize", 1, "Return how many keys there are.", ("readonly", "fast")),
    CommandSpec(
        "wait", 3, "Wait for replicas, of which there are none.", ("blocking",), since="3.0.0", group="generic",
        syntax="numreplicas timeout",
    ),
    CommandSpec(
        "waitaof", 4, "Wait for a sync.", ("blocking",), since="7.2.0", group="generic",
        syntax="numlocal numreplicas timeout",
    ),
    CommandSpec(
        "acl", -2, "Show who is authenticated.", since="6.0.0",
        subcommands=(_sub("acl|whoami", 2, "", "Return the user's name.", since="6.0.0"), _help("acl", "6.0.0")),
    ),
    CommandSpec(
        "memory", -2, "Show what takes memory.", since="4.0.0",
        subcommands=(
            _sub(
                "memory|usage", -3, "key [SAMPLES count]", "Return the bytes of a stream.", "readonly",
                since="4.0.0", key=2,
            ),
            _help("memory", "4.0.0"),
        ),
    ),
    CommandSpec("cluster", -2, "Refuse: there is no cluster.", since="3.0.0", group="cluster"),
    CommandSpec(
        "flushdb", -1, "Delete all streams of the database, if the server permits it.", ("write",),
        syntax="[ASYNC | SYNC]",
    ),
    CommandSpec("flushall", -1, "Delete all streams, if the server permits it.", ("write",), syntax="[ASYNC | SYNC]"),
    # --- keys ---
    CommandSpec("type", 2, "Return the type of a key.", ("readonly", "fast"), (1, 1, 1), group="generic", syntax="key"),
    CommandSpec(
        "exists", -2, "Return how many of the keys exist.", ("readonly", "fast"), (1, -1, 1), group="generic",
        syntax="key [...]",
    ),
    CommandSpec(
        "touch", -2, "Return how many of the keys exist.", ("readonly", "fast"), (1, -1, 1), "3.2.1", "generic",
        syntax="key [...]",
    ),
    CommandSpec("del", -2, "Delete streams.", ("write",), (1, -1, 1), group="generic", syntax="key [...]"),
    CommandSpec("unlink", -2, "Delete streams.", ("write", "fast"), (1, -1, 1), "4.0.0", "generic", syntax="key [...]"),
    CommandSpec("keys", 2, "Return the keys that match a pattern.", ("readonly",), group="generic", syntax="pattern"),
    CommandSpec(
        "scan", -2, "Return the keys that match a pattern.", ("readonly",), since="2.8.0", group="generic",
        syntax="cursor [MATCH pattern] [COUNT count] [TYPE type]",
    ),
    CommandSpec("randomkey", 1, "Return a key.", ("readonly",), group="generic"),
    CommandSpec(
        "ttl", 2, "Return how long a key lives.", ("readonly", "fast"), (1, 1, 1), group="generic", syntax="key",
    ),
    CommandSpec(
        "pttl", 2, "Return how long a key lives.", ("readonly", "fast"), (1, 1, 1), "2.6.0", "generic",
        syntax="key",
    ),
    CommandSpec(
        "expiretime", 2, "Return when a key ends.", ("readonly", "fast"), (1, 1, 1), "7.0.0", "generic",
        syntax="key",
    ),
    CommandSpec(
        "pexpiretime", 2, "Return when a key ends.", ("readonly", "fast"), (1, 1, 1), "7.0.0", "generic",
        syntax="key",
    ),
    CommandSpec(
        "persist", 2, "Do nothing: streams have no end.", ("write", "fast"), (1, 1, 1), "2.2.0", "generic",
        syntax="key",
    ),
    CommandSpec(
        "expire", -3, "Refuse: streams have no end.", ("write", "fast"), (1, 1, 1), group="generic",
        syntax="key seconds",
    ),
    CommandSpec(
        "pexpire", -3, "Refuse: streams have no end.", ("write", "fast"), (1, 1, 1), "2.6.0", "generic",
        syntax="key milliseconds",
    ),
    CommandSpec(
        "expireat", -3, "Refuse: streams have no end.", ("write", "fast"), (1, 1, 1), "1.2.0", "generic",
        syntax="key unix-time-seconds",
    ),
    CommandSpec(
        "pexpireat", -3, "Refuse: streams have no end.", ("write", "fast"), (1, 1, 1), "2.6.0", "generic",
        syntax="key unix-time-milliseconds",
    ),
    CommandSpec(
        "get", 2, "Return null: there are no strings.", ("readonly", "fast"), (1, 1, 1), group="string",
        syntax="key",
    ),
    CommandSpec(
        "object", -2, "Show how a key is kept.", since="2.2.3", group="generic",
        subcommands=(
            _sub("object|encoding", 3, "key", "Return how a key is kept.", "readonly", since="2.2.3", key=2),
            _sub("object|refcount", 3, "key", "Return 1.", "readonly", since="2.2.3", key=2),
            _sub("object|idletime", 3, "key", "Return 0.", "readonly", since="2.2.3", key=2),
            _sub("object|freq", 3, "key", "Return 0.", "readonly", since="4.0.0", key=2),
            _help("object", "6.2.0"),
        ),
    ),
    # --- transactions ---
    CommandSpec("multi", 1, "Begin a transaction.", ("noscript", "fast"), since="1.2.0", group="transactions"),
    CommandSpec("exec", 1, "Carry out a transaction.", ("noscript",), since="1.2.0", group="transactions"),
    CommandSpec("discard", 1, "Drop a transaction.", ("noscript", "fast"), since="2.0.0", group="transactions"),
    CommandSpec(
        "watch", -2, "Carry out a transaction only if nobody changes the keys.", ("noscript", "fast"), (1, -1, 1),
        "2.2.0", "transactions", syntax="key [...]",
    ),
    CommandSpec("unwatch", 1, "Forget the keys of WATCH.", ("noscript", "fast"), since="2.2.0", group="transactions"),
)  # fmt: skip

COMMANDS: Final[dict[bytes, CommandSpec]] = {spec.name.encode(): spec for spec in _TABLE}
SUBCOMMANDS: Final[dict[tuple[str, bytes], CommandSpec]] = {
    (spec.name, sub.name.partition("|")[2].encode()): sub for spec in _TABLE for sub in spec.subcommands
}


def all_specs() -> Iterator[CommandSpec]:
    """Yield each command, each followed by its subcommands."""
    for spec in _TABLE:
        yield spec
        yield from spec.subcommands
