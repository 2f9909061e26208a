"""COMMAND and the HELP subcommands: what the table of commands shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lapwing.sessions.redis.replies import Reply
from lapwing.wire.resp import commands, replies
from lapwing.wire.resp.commands import COMMANDS, CommandSpec
from lapwing.wire.resp.errors import ErrorReply

if TYPE_CHECKING:
    from lapwing.sessions.redis.client_state import ClientState


def everything(session: ClientState, words: list[bytes], now: int) -> Reply:
    """COMMAND."""
    return replies.array([_entry(spec, session.protocol) for spec in COMMANDS.values()])


def count(session: ClientState, words: list[bytes], now: int) -> Reply:
    """COMMAND COUNT."""
    return replies.integer(len(COMMANDS))


def names(session: ClientState, words: list[bytes], now: int) -> Reply:
    """COMMAND LIST."""
    return replies.bulks([spec.name.encode() for spec in commands.all_specs()])


def info(session: ClientState, words: list[bytes], now: int) -> Reply:
    """COMMAND INFO [name ..]; an unknown name is null."""
    if len(words) == 2:
        return everything(session, words, now)
    found = [_named(word) for word in words[2:]]
    empty = replies.null_array(session.protocol)
    return replies.array([empty if spec is None else _entry(spec, session.protocol) for spec in found])


def docs(session: ClientState, words: list[bytes], now: int) -> Reply:
    """COMMAND DOCS [name ..]; an unknown name is left out."""
    found = [_named(word) for word in words[2:]] if len(words) > 2 else list(COMMANDS.values())
    protocol = session.protocol
    return replies.mapping([(replies.text(each.name), _docs(each, protocol)) for each in found if each], protocol)


def get_keys(session: ClientState, words: list[bytes], now: int) -> Reply:
    """COMMAND GETKEYS command [word ..]."""
    try:
        spec = commands.find(words[2:])
    except ErrorReply as error:
        known = words[2].lower() in COMMANDS
        line = "Invalid number of arguments specified for command" if known else "Invalid command specified"
        raise ErrorReply(f"ERR {line}") from error
    found = commands.keys_of(spec, words[2:])
    if not found:
        raise ErrorReply("ERR The command has no key arguments")
    return replies.bulks(found)


def show_help(session: ClientState, words: list[bytes], now: int) -> Reply:
    """Return the HELP of any command with subcommands: a line for each of them, then what it does."""
    spec = COMMANDS[words[0].lower()]
    lines = [f"{spec.name.upper()} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"]
    for sub in spec.subcommands:
        name = sub.name.partition("|")[2].upper()
        lines += [f"{name} {sub.syntax}".rstrip(), f"    {sub.summary}"]
    return replies.array([replies.simple(line) for line in lines])


def _named(word: bytes) -> CommandSpec | None:
    name, _, sub = word.lower().partition(b"|")
    spec = COMMANDS.get(name)
    return commands.SUBCOMMANDS.get((spec.name, sub)) if spec is not None and sub else spec


def _entry(spec: CommandSpec, protocol: int) -> bytes:
    flags = [replies.simple(flag) for flag in spec.flags]
    first, last, step = spec.keys
    categories = [f"@{word}" for word in _categories(spec)]
    return replies.array(
        [
            replies.text(spec.name),
            replies.integer(spec.arity),
            replies.unordered(flags, protocol),
            replies.integer(first),
            replies.integer(last),
            replies.integer(step),
            replies.unordered([replies.simple(word) for word in categories], protocol),
            replies.EMPTY,
            replies.EMPTY,
            replies.array([_entry(sub, protocol) for sub in spec.subcommands]),
        ]
    )


def _categories(spec: CommandSpec) -> list[str]:
    kind = "write" if "write" in spec.flags else "read" if "readonly" in spec.flags else ""
    group = {"generic": "keyspace", "transactions": "transaction", "server": "admin"}.get(spec.group, spec.group)
    speed = "fast" if "fast" in spec.flags else "slow"
    return [word for word in (kind, group, speed, "blocking" if "blocking" in spec.flags else "") if word]


def _docs(spec: CommandSpec, protocol: int) -> bytes:
    fields = [
        ("summary", replies.text(spec.summary)),
        ("since", replies.text(spec.since)),
        ("group", replies.text(spec.group)),
        ("complexity", replies.text(spec.complexity)),
    ]
    if spec.syntax:
        fields.append(("arguments", replies.array([_argument(word, protocol) for word in _words(spec.syntax)])))
    if spec.subcommands:
        subs = [(replies.text(sub.name), _docs(sub, protocol)) for sub in spec.subcommands]
        fields.append(("subcommands", replies.mapping(subs, protocol)))
    return replies.fields(fields, protocol)


def _words(syntax: str) -> list[str]:
    """Return the parts of a syntax: words, and what stands between brackets as one."""
    parts: list[str] = []
    depth, part = 0, ""
    for character in syntax + " ":
        if character == " " and not depth:
            if part:
                parts.append(part)
            part = ""
            continue
        depth += character in "[<"
        depth -= character in "]>"
        part += character
    return parts


def _argument(word: str, protocol: int) -> bytes:
    """Return one part of a syntax as redis-cli shows it."""
    optional = word.startswith("[")
    name = word[1:-1] if optional else word
    fields = [("name", replies.text(name)), ("type", replies.text("string")), ("display_text", replies.text(name))]
    if optional:
        fields.append(("flags", replies.array([replies.simple("optional")])))
    return replies.fields(fields, protocol)
