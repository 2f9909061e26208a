"""The fields of JSON bodies: their names and types, as a sample of messages shows them."""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, TypeAlias

Kind: TypeAlias = "str | dict[str, Kind] | list[Kind]"  # the types of SQL, objects and lists

INTEGER: Final = "bigint"
DOUBLE: Final = "double"
BOOLEAN: Final = "boolean"
TEXT: Final = "string"
_NOTHING: Final = ""  # of a field that was null in all messages so far
_DEEPEST: Final = 8  # what lies deeper in a body is text


def fields(bodies: Iterable[bytes]) -> dict[str, Kind]:
    """Return the fields of the bodies that are JSON objects, in order of their names, with types that fit all values.

    SQL does not look at the case of names: of several that differ in it alone, the first that is met is a field.
    """
    found: Kind = {}
    for body in bodies:
        with suppress(ValueError, RecursionError):
            value = json.loads(body)
            if isinstance(value, dict):
                found = _common(found, _kind(value, 0))
    shown = _shown(found)
    return shown if isinstance(shown, dict) else {}


def _kind(value: Any, depth: int) -> Kind:
    if value is None:
        return _NOTHING
    if isinstance(value, bool):
        return BOOLEAN
    if isinstance(value, int):
        return INTEGER if -(1 << 63) <= value < 1 << 63 else TEXT
    if isinstance(value, float):
        return DOUBLE
    if isinstance(value, str) or depth == _DEEPEST:
        return TEXT
    if isinstance(value, dict):
        return {name: _kind(each, depth + 1) for name, each in value.items() if name}
    kind: Kind = _NOTHING
    for each in value:
        kind = _common(kind, _kind(each, depth + 1))
    return [kind]


def _common(one: Kind, other: Kind) -> Kind:
    """Return the type that has the values of both."""
    if one == other or other == _NOTHING:
        return one
    if one == _NOTHING:
        return other
    if isinstance(one, dict) and isinstance(other, dict):
        return {**one, **{name: _common(one.get(name, _NOTHING), kind) for name, kind in other.items()}}
    if isinstance(one, list) and isinstance(other, list):
        return [_common(one[0], other[0])]
    return DOUBLE if {str(one), str(other)} == {INTEGER, DOUBLE} else TEXT


def _shown(kind: Kind) -> Kind:
    """Return the type without what SQL cannot have: objects without fields, and names that differ in case alone."""
    if isinstance(kind, dict):
        return {name: _shown(kind[name]) for name in sorted(_distinct(kind))} or TEXT
    if isinstance(kind, list):
        return [_shown(kind[0])]
    return kind or TEXT


def _distinct(names: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for name in names:
        if name.lower() not in seen:
            seen.add(name.lower())
            yield name
