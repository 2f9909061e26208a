"""Every command that is understood: how many words it takes, where its keys are, and what COMMAND shows of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from lapwing.records import dataclass
from lapwing.wire.resp import errors
from lapwing.wire.resp.arguments import integer
from lapwing.wire.resp.errors import ErrorReply

SCRIPTS: Final = frozenset({"eval", "evalsha"})  # their keys stand behind a count


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
    count, arity = len(words), spec.arity
    if count != arity and (arity >= 0 or count < -arity):
        raise errors.wrong_arity(spec.name)
    return spec


def keys_of(spec: CommandSpec, words: list[bytes]) -> list[bytes]:
    """Return the keys that a request names. Raises `ErrorReply`."""
    if spec.name in ("xread", "xreadgroup"):
        for at, word in enumerate(words):
            if at and word.upper() == b"STREAMS":
                return words[at + 1 : at + 1 + (len(words) - at - 1) // 2]
        raise ErrorReply("ERR Invalid arguments specified for command")
    if spec.name in SCRIPTS:
        count = integer(words[2])
        if not 0 <= count <= len(words) - 3:
            raise ErrorReply("ERR Number of keys can't be greater than number of args")
        return words[3 : 3 + count]
    first, last, step = spec.keys
    if not first:
        return []
    return words[first : (last + 1 if last >= 0 else len(words) + last + 1) : step]


def _command(
    group: str,
    name: str,
    arity: int,
    syntax: str,
    summary: str,
    *flags: str,
    since: str = "1.0.0",
    key: int = 0,
    last: int | None = None,
    complexity: str = "O(1)",
    subcommands: tuple[CommandSpec, ...] = (),
) -> CommandSpec:
    """Return a command whose keys are the words from `key` to `last`, or the word `key` alone."""
    keys = (key, key if last is None else last, 1) if key else (0, 0, 0)
    return CommandSpec(name, arity, summary, flags, keys, since, group, complexity, syntax, subcommands)


_stream = partial(_command, "stream", since="5.0.0", key=1)
_connection = partial(_command, "connection")
_server = partial(_command, "server")
_generic = partial(_command, "generic")
_scripting = partial(_command, "scripting", since="2.6.0")
_transaction = partial(_command, "transactions")


def _sub(name: str, arity: int, syntax: str, summary: str, *flags: str, since: str, key: int = 0) -> CommandSpec:
    group = "stream" if name.startswith("x") else "connection" if name.startswith("client") else "server"
    return _command(group, name, arity, syntax, summary, *flags, since=since, key=key)


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
    _connection("auth", -2, "[username] password", "Authenticate.", "noscript", "fast", "no_auth"),
    _connection(
        "hello", -1, "[protover [AUTH username password] [SETNAME clientname]]",
        "Choose the protocol, and authenticate.", "noscript", "fast", "no_auth", since="6.0.0",
    ),
    _connection("ping", -1, "[message]", "Return PONG.", "fast"),
    _connection("echo", 2, "message", "Return the message.", "fast"),
    _connection("quit", -1, "", "Close the connection.", "noscript", "fast", "no_auth"),
    _connection("reset", 1, "", "Begin as a new connection does.", "noscript", "fast", "no_auth", since="6.2.0"),
    _connection("select", 2, "index", "Choose a database.", "fast"),
    _connection(
        "client", -2, "", "Show and change connections.", since="2.4.0",
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
    _server(
        "command", -1, "", "Show the commands.", since="2.8.13",
        subcommands=(
            _sub("command|count", 2, "", "Return how many commands there are.", since="2.8.13"),
            _sub("command|docs", -2, "[command-name [...]]", "Describe commands.", since="7.0.0"),
            _sub("command|info", -2, "[command-name [...]]", "Show commands.", since="2.8.13"),
            _sub("command|list", -2, "", "Return the names of the commands.", since="7.0.0"),
            _sub("command|getkeys", -3, "command [arg [...]]", "Return the keys of a command.", since="2.8.13"),
            _help("command", "5.0.0"),
        ),
    ),
    _server("info", -1, "[section [...]]", "Show the state of the server."),
    _server(
        "config", -2, "", "Show settings.", since="2.0.0",
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
    _server("time", 1, "", "Return the time.", "fast", since="2.6.0"),
    _server("role", 1, "", "Return the role in a replication.", "fast", since="2.8.12"),
    _server("dbsize", 1, "", "Return how many keys there are.", "readonly", "fast"),
    _generic(
        "wait", 3, "numreplicas timeout", "Wait for replicas, of which there are none.", "blocking", since="3.0.0",
    ),
    _generic("waitaof", 4, "numlocal numreplicas timeout", "Wait for a sync.", "blocking", since="7.2.0"),
    _server(
        "acl", -2, "", "Show who is authenticated.", since="6.0.0",
        subcommands=(_sub("acl|whoami", 2, "", "Return the user's name.", since="6.0.0"), _help("acl", "6.0.0")),
    ),
    _server(
        "memory", -2, "", "Show what takes memory.", since="4.0.0",
        subcommands=(
            _sub(
                "memory|usage", -3, "key [SAMPLES count]", "Return the bytes of a stream.", "readonly",
                since="4.0.0", key=2,
            ),
            _help("memory", "4.0.0"),
        ),
    ),
    _command("cluster", "cluster", -2, "", "Refuse: there is no cluster.", since="3.0.0"),
    _server("flushdb", -1, "[ASYNC | SYNC]", "Delete all streams of the database, if the server permits it.", "write"),
    _server("flushall", -1, "[ASYNC | SYNC]", "Delete all streams, if the server permits it.", "write"),
    # --- keys ---
    _generic("type", 2, "key", "Return the type of a key.", "readonly", "fast", key=1),
    _generic("exists", -2, "key [...]", "Return how many of the keys exist.", "readonly", "fast", key=1, last=-1),
    _generic(
        "touch", -2, "key [...]", "Return how many of the keys exist.", "readonly", "fast", since="3.2.1", key=1,
        last=-1,
    ),
    _generic("del", -2, "key [...]", "Delete streams, end locks.", "write", key=1, last=-1),
    _generic("unlink", -2, "key [...]", "Delete streams, end locks.", "write", "fast", since="4.0.0", key=1, last=-1),
    _generic("keys", 2, "pattern", "Return the keys that match a pattern.", "readonly"),
    _generic(
        "scan", -2, "cursor [MATCH pattern] [COUNT count] [TYPE type]", "Return the keys that match a pattern.",
        "readonly", since="2.8.0",
    ),
    _generic("randomkey", 1, "", "Return a key.", "readonly"),
    _generic("ttl", 2, "key", "Return how long a key lives.", "readonly", "fast", key=1),
    _generic("pttl", 2, "key", "Return how long a key lives.", "readonly", "fast", since="2.6.0", key=1),
    _generic("expiretime", 2, "key", "Return when a key ends.", "readonly", "fast", since="7.0.0", key=1),
    _generic("pexpiretime", 2, "key", "Return when a key ends.", "readonly", "fast", since="7.0.0", key=1),
    _generic("persist", 2, "key", "Have a lock stay until it is released.", "write", "fast", since="2.2.0", key=1),
    _generic("expire", -3, "key seconds", "Set when a lock ends.", "write", "fast", key=1),
    _generic("pexpire", -3, "key milliseconds", "Set when a lock ends.", "write", "fast", since="2.6.0", key=1),
    _generic(
        "expireat", -3, "key unix-time-seconds", "Set when a lock ends.", "write", "fast", since="1.2.0", key=1,
    ),
    _generic(
        "pexpireat", -3, "key unix-time-milliseconds", "Set when a lock ends.", "write", "fast", since="2.6.0",
        key=1,
    ),
    _command("string", "get", 2, "key", "Return the token of a lock.", "readonly", "fast", key=1),
    _command(
        "string", "set", -3, "key token NX [EX seconds | PX milliseconds]", "Take a lock.", "write", "denyoom", key=1,
    ),
    _generic(
        "object", -2, "", "Show how a key is kept.", since="2.2.3",
        subcommands=(
            _sub("object|encoding", 3, "key", "Return how a key is kept.", "readonly", since="2.2.3", key=2),
            _sub("object|refcount", 3, "key", "Return 1.", "readonly", since="2.2.3", key=2),
            _sub("object|idletime", 3, "key", "Return 0.", "readonly", since="2.2.3", key=2),
            _sub("object|freq", 3, "key", "Return 0.", "readonly", since="4.0.0", key=2),
            _help("object", "6.2.0"),
        ),
    ),
    # --- scripts ---
    _scripting(
        "eval", -3, "script numkeys [key [...]] [arg [...]]", "Run a script of redis-py's Lock.", "noscript",
        "movablekeys",
    ),
    _scripting(
        "evalsha", -3, "sha1 numkeys [key [...]] [arg [...]]", "Run a script of redis-py's Lock.", "noscript",
        "movablekeys",
    ),
    _scripting(
        "script", -2, "", "Show which scripts are known.",
        subcommands=(
            _sub("script|load", 3, "script", "Return the SHA-1 of a script of redis-py's Lock.", since="2.6.0"),
            _sub("script|exists", -3, "sha1 [...]", "Return which scripts are known.", since="2.6.0"),
            _sub("script|flush", -2, "[ASYNC | SYNC]", "Do nothing: scripts are not kept.", since="2.6.0"),
            _help("script", "5.0.0"),
        ),
    ),
    # --- transactions ---
    _transaction("multi", 1, "", "Begin a transaction.", "noscript", "fast", since="1.2.0"),
    _transaction("exec", 1, "", "Carry out a transaction.", "noscript", since="1.2.0"),
    _transaction("discard", 1, "", "Drop a transaction.", "noscript", "fast", since="2.0.0"),
    _transaction(
        "watch", -2, "key [...]", "Carry out a transaction only if nobody changes the keys.", "noscript", "fast",
        since="2.2.0", key=1, last=-1,
    ),
    _transaction("unwatch", 1, "", "Forget the keys of WATCH.", "noscript", "fast", since="2.2.0"),
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
