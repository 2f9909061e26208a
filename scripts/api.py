#!/usr/bin/env python3
"""Write docs/reference/api.md from the docstrings of the library: `.venv/bin/python scripts/api.py`."""

import inspect
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

PAGE: Final = Path(__file__).parents[1] / "docs/reference/api.md"
WIDTH: Final = 100

# heading: module, names
SECTIONS: Final = {
    "Applications": ("lapwing", "App"),
    "Publishing": ("lapwing", "Producer"),
    "Consuming": ("lapwing", "Consumer ConsumerStats Message Requeue Hold Reject"),
    "Reading a log": ("lapwing", "LogReader LogMessage"),
    "Without asyncio": ("lapwing", "SyncProducer SyncConsumer"),
    "Administration": ("lapwing", "Admin SyncAdmin LetterFilter"),
    "Settings of clients": ("lapwing", "ClientOptions"),
    "Tests": ("lapwing.testing", "Broker Outcome"),
    "Outbox": ("lapwing.outbox.sqlalchemy", "outbox_table add Relay"),
    "Spark": ("lapwing.spark.session", "local_session"),
    "Errors": (
        "lapwing",
        "LapwingError ConfigError ClientError ConnectionLost Unreachable Refused PublishFailed PublishTimeout "
        "RequestTimeout Stopped CallFailed NodesFailed SeveralNodes NoSuchNode NothingThere UpstreamFailed NoLog "
        "NoTopic",
    ),
}
HEAD: Final = """\
# Library reference

Made from the docstrings by `scripts/api.py`; a test compares. [client.md](client.md) explains the
library by task. `Body` is bytes, text, or a value that becomes JSON: a dict, dataclass, TypedDict,
msgspec Struct or pydantic model. `ClientSettings` are the fields of
[`ClientOptions`](#clientoptions) ([their meaning](client.md#settings)), `ChannelSettings` the
[settings of a channel](failure.md#settings).

"""


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for heading, (module, names) in SECTIONS.items():
        parts.append(f"## {heading}\n\n")
        found = [(name, getattr(import_module(module), name)) for name in names.split()]
        if heading == "Errors":
            parts += _errors([kind for _, kind in found])
            continue
        for name, thing in found:
            parts += _entry(module, name, thing)
    return "".join(parts).rstrip() + "\n"


def _errors(kinds: list[type[Exception]]) -> Iterator[str]:
    yield "All are in `lapwing`.\n\n| error | is a | |\n|---|---|---|\n"
    for kind in kinds:
        text = " ".join(inspect.getdoc(kind).split("\n\n")[0].split()) if kind.__doc__ else ""
        yield f"| `{kind.__name__}` | `{kind.__bases__[0].__name__}` | {text} |\n"
    yield "\n"


def _entry(module: str, name: str, thing: Any) -> Iterator[str]:
    yield f"### {name}\n\n```\nfrom {module} import {name}\n\n{_signature(name, thing)}\n```\n\n{_text(thing)}\n\n"
    if not inspect.isclass(thing):
        return
    attributes = [(member, value) for member, value in _members(thing) if isinstance(value, property)]
    if attributes:
        yield "| attribute | |\n|---|---|\n"
        for member, value in attributes:
            yield f"| `{member}` | {' '.join((inspect.getdoc(value) or '').split())} |\n"
        yield "\n"
    for member, value in _members(thing):
        if inspect.isroutine(value) or isinstance(value, classmethod | staticmethod):
            function = getattr(thing, member)
            yield f"#### {name}.{member}\n\n```\n{_signature(member, function)}\n```\n\n{_text(function)}\n\n"


def _members(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the public members in the order of the source, those of bases that are ours too."""
    seen = set()
    for each in kind.__mro__:
        if not each.__module__.startswith("lapwing"):
            continue
        for member, value in vars(each).items():
            if not member.startswith("_") and member not in seen and inspect.getdoc(value):
                seen.add(member)
                yield member, value


def _signature(name: str, thing: Any) -> str:
    """Return `name(parameters) -> result`, one parameter a line where that is too long."""
    signature = inspect.signature(thing)
    parameters = [each for each in signature.parameters.values() if each.name != "self"]
    words, star = [], False
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and not star:
            words.append("*")
        star = star or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        words.append(_keywords(each) if each.kind is each.VAR_KEYWORD else _short(str(each)))
    result = (
        ""
        if inspect.isclass(thing) or signature.return_annotation is signature.empty
        else _short(" -> " + inspect.formatannotation(signature.return_annotation))
    )
    start = ("async " if inspect.iscoroutinefunction(thing) else "") + name
    line = f"{start}({', '.join(words)}){result}"
    if len(line) <= WIDTH:
        return line
    return f"{start}(\n" + "".join(f"    {word},\n" for word in words) + f"){result}"


def _keywords(parameter: inspect.Parameter) -> str:
    """Return `**name: Kind` for keywords that a TypedDict lists."""
    kinds = getattr(parameter.annotation, "__args__", ())
    return f"**{parameter.name}" + (f": {kinds[0].__name__}" if kinds else "")


def _short(annotation: str) -> str:
    """Return an annotation without modules, and with the names of long unions."""
    text = re.sub(r"\b(?:\w+\.)+(?=[A-Za-z_])", "", annotation).replace("'", '"')
    text = re.sub(r'"([^"\[]*\[.*\].*?)"', r"\1", text)
    text = text.replace("bytes | str | Mapping[str, Any] | _Dataclass | _Struct | _Model", "Body")
    text = re.sub(r"LetterFilter\(.*\)$", "LetterFilter()", text)
    return re.sub(r"Callable\[\[Callable\[Concatenate.*", "Decorator", text)


def _text(thing: Any) -> str:
    """Return a docstring as Markdown: paragraphs wrapped, indented examples as code."""
    paragraphs = []
    for part in re.split(r"\n\n+", inspect.getdoc(thing) or ""):
        if part.startswith("    "):
            part = textwrap.dedent(part)
            if paragraphs and paragraphs[-1].startswith("```"):
                paragraphs[-1] = paragraphs[-1].removesuffix("```") + f"\n{part}\n```"
            else:
                paragraphs.append(f"```\n{part}\n```")
        elif re.match(r"[-*] ", part):
            paragraphs.append(part)
        else:
            part = re.sub(r"::$", ":", " ".join(part.split()))
            paragraphs.append(textwrap.fill(part, WIDTH, break_long_words=False, break_on_hyphens=False))
    return "\n\n".join(paragraphs)


if __name__ == "__main__":
    PAGE.write_text(page())
