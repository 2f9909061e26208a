"""Look for mistakes in a query that show without Spark: quotes, brackets, comments and the first word.

Everything else is left to Spark, so that no query that it understands is refused.
"""

import difflib
import re
from collections.abc import Iterator
from typing import Final

from lapwing.errors import ConfigError

_STATEMENTS: Final = (
    "add", "alter", "analyze", "begin", "cache", "call", "clear", "comment", "create", "declare", "delete", "desc",
    "describe", "dfs", "drop", "execute", "explain", "export", "from", "grant", "import", "insert", "list", "load",
    "lock", "map", "merge", "msck", "reduce", "refresh", "repair", "replace", "reset", "revoke", "rollback", "select",
    "set", "show", "start", "table", "truncate", "uncache", "unlock", "unset", "update", "use", "values", "with",
)  # fmt: skip
_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|--[^\n]*)
      |(?P<comment>/\*)
      |(?P<quoted>[rR]'[^']*'|[rR]"[^"]*"|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`(?:[^`]|``)*`)
      |(?P<word>\w+)
      |(?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_CLOSING: Final = {"(": ")", "[": "]"}
_QUOTES: Final = ("'", '"', "`")


def check(sql: str) -> None:
    """Raise `ConfigError`, with the place in the text, for a query that cannot be right."""
    open_brackets: list[tuple[str, int]] = []
    first = ""  # the word that the query begins with
    ended = False
    for text, at in _tokens(sql):
        if ended and text != ";" and first != "begin":
            raise _wrong(sql, at, "one query expected, and here begins another")
        ended = ended or text == ";"
        if text in _QUOTES:
            raise _wrong(sql, at, f"the quote {text} is not closed")
        if text in _CLOSING:
            open_brackets.append((text, at))
        elif text in _CLOSING.values():
            if not open_brackets:
                raise _wrong(sql, at, f"the {text} closes nothing")
            opened, there = open_brackets.pop()
            if _CLOSING[opened] != text:
                raise _wrong(sql, there, f"the {opened} is closed by a {text}")
        elif not first and not ended:
            _check_first(sql, text, at)
            first = text.lower()
    if not first:
        raise ConfigError("sql: the query is empty; an example: lapwing sql 'select count(*) from orders'")
    if open_brackets:
        raise _wrong(sql, open_brackets[-1][1], f"the {open_brackets[-1][0]} is not closed")


def identifiers(sql: str) -> list[str]:
    """Return the words of a query that may be names of topics."""
    words = (text[1:-1] if text[0] in '"`' and len(text) > 1 else text for text, _ in _tokens(sql))
    return list(dict.fromkeys(words))


def double_quoted(sql: str) -> str:
    """Return the query with names in double quotes that stand in backticks, as in Spark's SQL."""
    found = sql
    for text, at in _tokens(sql):
        if text[0] == "`" and text[-1] == "`" and '"' not in text:
            found = f'{found[:at]}"{text[1:-1]}"{found[at + len(text):]}'
    return found


def _tokens(sql: str) -> Iterator[tuple[str, int]]:
    """Yield words, quoted texts and signs with their places, and a quote by itself where it is not closed."""
    at = 0
    while (match := _TOKEN.match(sql, at)) is not None:
        if match["comment"]:
            at = _behind_comment(sql, at)
            continue
        if not match["space"]:
            yield match[0], at
        at = match.end()


def _behind_comment(sql: str, start: int) -> int:
    """Return the place behind a comment, which may have others in it."""
    depth = 0
    for match in re.compile(r"/\*|\*/").finditer(sql, start):
        depth += 1 if match[0] == "/*" else -1
        if not depth:
            return match.end()
    raise _wrong(sql, start, "the comment /* is not closed")


def _check_first(sql: str, word: str, at: int) -> None:
    if word.lower() not in _STATEMENTS:
        near = difflib.get_close_matches(word.lower(), _STATEMENTS, n=1, cutoff=0.75)
        fix = f"did you mean {near[0]}?" if near else "a query begins with select, with, values, show or describe"
        raise _wrong(sql, at, f"{word[:40]} is no statement of SQL; {fix}")


def _wrong(sql: str, at: int, what: str) -> ConfigError:
    """Return the error with the line of the query, and a mark below the place."""
    line = sql.count("\n", 0, at) + 1
    begin = sql.rfind("\n", 0, at) + 1
    shown = sql[begin:].partition("\n")[0].replace("\t", " ")
    start = max(0, at - begin - 40)  # the place stays in sight in a long line
    return ConfigError(f"sql: line {line}: {what}\n  {shown[start : start + 76]}\n  {' ' * (at - begin - start)}^")
