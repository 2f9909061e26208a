"""Message bodies as values: the type of a value decides how it is encoded, an annotation how a body is decoded.

JSON goes through msgspec where it is installed, else through the standard library; pydantic's models through pydantic.
"""

import dataclasses
import datetime
import decimal
import enum
import functools
import importlib
import json
import types
import typing
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, NoReturn, Protocol, TypeVar, Union, is_typeddict

from lapwing.errors import ConfigError


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


class _Struct(Protocol):
    __struct_fields__: ClassVar[tuple[str, ...]]


class _Model(Protocol):
    def model_dump_json(self) -> str: ...


# a type checker flags any other body; a TypedDict is a mapping
Body = bytes | str | Mapping[str, Any] | _Dataclass | _Struct | _Model
Decoder = Callable[[bytes], Any]

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
_KINDS: Final = "bytes, str, a dict, a dataclass, a TypedDict, a msgspec Struct or a pydantic model"
_PARSED: Final[dict[Any, Callable[[str], Any]]] = {
    datetime.datetime: datetime.datetime.fromisoformat,
    datetime.date: datetime.date.fromisoformat,
    decimal.Decimal: decimal.Decimal,
    uuid.UUID: uuid.UUID,
}


@functools.cache
def _msgspec() -> Any:
    try:
        return importlib.import_module("msgspec")
    except ImportError:
        return None


def encode(body: Body) -> tuple[bytes, str]:
    """Return the bytes of a body and their content type, none for bytes.

    Raises `TypeError` for a value of another type, and what the encoder raises for one that JSON cannot hold.
    """
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body), ""
    if isinstance(body, str):
        return body.encode(), TEXT
    if isinstance(body, Mapping) or (dataclasses.is_dataclass(body) and not isinstance(body, type)):
        if _msgspec() is not None:
            return _msgspec().json.encode(body), JSON
        return json.dumps(body, default=_plain, separators=(",", ":"), allow_nan=False).encode(), JSON
    if _is_model(type(body)):
        return typing.cast(_Model, body).model_dump_json().encode(), JSON
    if _is_struct(type(body)):
        return _msgspec().json.encode(body), JSON
    raise TypeError(f"a message body is {_KINDS}, not {type(body).__name__}")


def _plain(value: Any) -> Any:
    """Return a value that JSON has, for one that it has not. Raises `TypeError`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (datetime.date, datetime.datetime)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, uuid.UUID)):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    if _is_model(type(value)):
        return value.model_dump(mode="json")
    raise TypeError(f"JSON has no {type(value).__name__}")


def decoder(annotation: Any) -> Decoder | None:
    """Return a function that decodes bodies into `annotation`; it raises for a body that is none.

    None for `bytes`, which is the body as it is. Raises `ConfigError` for an annotation that no body decodes into.
    """
    if annotation is bytes:
        return None
    if annotation is str:
        return bytes.decode
    kind = typing.get_origin(annotation) or annotation
    if _is_model(kind):
        found: Decoder = kind.model_validate_json
        return found
    structured = kind in (dict, Mapping, Union, types.UnionType) or dataclasses.is_dataclass(kind) or is_typeddict(kind)
    if structured and _msgspec() is None:
        convert = _converter(annotation)
        return lambda body: convert(json.loads(body, parse_constant=_no_number), "$")
    if structured or _is_struct(kind):
        try:
            json_decoder = _msgspec().json.Decoder(annotation)
        except TypeError as error:
            raise ConfigError(f"{name_of(annotation)}: {error}") from error
        _refuse_unknown_classes(annotation)
        decode: Decoder = json_decoder.decode
        return decode
    raise ConfigError(f"a body cannot be decoded into {name_of(annotation)}: annotate it with {_KINDS}")


def _refuse_unknown_classes(annotation: Any) -> None:
    """Raise `ConfigError` for a class within `annotation` that msgspec would refuse only with the first message."""
    inspector = importlib.import_module("msgspec.inspect")
    found, seen = [inspector.type_info(annotation)], set[int]()
    while found:
        part = found.pop()
        if isinstance(part, inspector.CustomType):
            raise ConfigError(f"JSON cannot be decoded into {name_of(part.cls)}")
        if isinstance(part, (list, tuple)):
            found += part
        elif hasattr(part, "__struct_fields__") and id(part) not in seen:
            seen.add(id(part))
            found += [getattr(part, name) for name in part.__struct_fields__ if name not in ("default", "cls")]


def name_of(annotation: Any) -> str:
    """Return an annotation as a program writes it."""
    return getattr(annotation, "__name__", "") if isinstance(annotation, type) else str(annotation)


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_validate_json") and hasattr(kind, "model_dump_json")


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "__struct_fields__") and _msgspec() is not None


# -- decoding without msgspec

_Convert = Callable[[Any, str], Any]  # a value of JSON and its place in the body


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


def _refuse(wanted: str, value: Any, place: str) -> NoReturn:
    raise ValueError(f"expected {wanted}, got {json.dumps(value)[:80]} at {place}")


def _converter(annotation: Any) -> _Convert:
    """Return a function that checks a value of JSON and returns it as `annotation`. Raises `ConfigError`."""
    kind, arguments = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
    if kind is Any or kind is object or isinstance(annotation, TypeVar):
        return lambda value, place: value
    if kind is typing.Annotated or kind in (typing.Required, typing.NotRequired):
        return _converter(arguments[0])
    if kind in (Union, types.UnionType):
        return _one_of([_converter(argument) for argument in arguments], annotation)
    if kind is Literal:
        return lambda value, place: value if value in arguments else _refuse(name_of(annotation), value, place)
    if kind in (None, type(None)):
        return lambda value, place: None if value is None else _refuse("null", value, place)
    if kind in (bool, int, str):
        return lambda value, place: value if type(value) is kind else _refuse(kind.__name__, value, place)
    if kind is float:
        return lambda value, place: float(value) if type(value) in (int, float) else _refuse("float", value, place)
    if kind in (list, tuple, set, frozenset) or kind in (Sequence, Iterable):
        return _items(kind, arguments)
    if kind in (dict, Mapping):
        return _members(_converter(arguments[1] if arguments else Any))
    if dataclasses.is_dataclass(kind):
        required = {
            field.name: field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            for field in dataclasses.fields(kind)
            if field.init
        }
        return _fields(kind, required, typing.cast(Callable[..., Any], kind))
    if is_typeddict(kind):
        return _fields(kind, {name: name in kind.__required_keys__ for name in kind.__annotations__}, dict)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return lambda value, place: kind(value)
    if kind in _PARSED:
        return lambda value, place: _PARSED[kind](value) if isinstance(value, str) else _refuse("text", value, place)
    raise ConfigError(f"JSON cannot be decoded into {name_of(annotation)} without msgspec: pip install msgspec")


def _one_of(choices: list[_Convert], annotation: Any) -> _Convert:
    def convert(value: Any, place: str) -> Any:
        problem = ""
        for choice in choices:
            try:
                return choice(value, place)
            except (ValueError, TypeError) as error:
                problem = str(error)
        raise ValueError(f"expected {name_of(annotation)} at {place}: {problem}")

    return convert


def _items(kind: Any, arguments: tuple[Any, ...]) -> _Convert:
    item = _converter(arguments[0] if arguments else Any)
    make = kind if isinstance(kind, type) and kind in (list, tuple, set, frozenset) else list

    def convert(value: Any, place: str) -> Any:
        if not isinstance(value, list):
            _refuse("a list", value, place)
        return make(item(each, f"{place}[{number}]") for number, each in enumerate(value))

    return convert


def _members(member: _Convert) -> _Convert:
    def convert(value: Any, place: str) -> Any:
        if not isinstance(value, dict):
            _refuse("an object", value, place)
        return {name: member(each, f"{place}.{name}") for name, each in value.items()}

    return convert


def _fields(kind: Any, required: dict[str, bool], make: Callable[..., Any]) -> _Convert:
    converters: dict[str, _Convert] = {}

    def convert(value: Any, place: str) -> Any:
        if not isinstance(value, dict):
            _refuse(kind.__name__, value, place)
        for name, needed in required.items():
            if needed and name not in value:
                raise ValueError(f"{kind.__name__} lacks {name} at {place}")
        return make(**{name: converters[name](value[name], f"{place}.{name}") for name in required if name in value})

    hints = typing.get_type_hints(kind, include_extras=True)
    converters.update((name, _converter(hints[name])) for name in required)
    return convert
