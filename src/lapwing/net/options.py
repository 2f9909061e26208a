"""One description of a program's settings: its flags, its config file and its documentation all come from it.

    @dataclass(frozen=True, slots=True)
    class Options:
        tcp_address: str = option("0.0.0.0:4150", "`host:port` to listen on for clients")
        msg_timeout: int = option("1m", "...", kind=DURATION)

This module waits for nothing and opens nothing, so that any room may describe its settings with it.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from lapwing import durations
from lapwing.records import dataclass

_INTEGER: Final = re.compile("[+-]?(?:0|[1-9](?:_?[0-9])*|0[xX](?:_?[0-9a-fA-F])+|0[oO]?(?:_?[0-7])+|0[bB](?:_?[01])+)")
_USER: Final = re.compile(r"(://)[^/@\s]*@")
_QUERY_VALUE: Final = re.compile(r"([?&][^=&#\s]*=)[^&#\s]+")
_SMALLEST: Final = -(2**63)
_LARGEST: Final = 2**63 - 1
_BOOLEANS: Final = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of setting: its readers for flags and files, and its display.

    The readers raise `ValueError` with the form that is expected.
    """

    name: str  # in the usage text, behind the flag
    from_flag: Callable[[str], Any]
    from_file: Callable[[Any], Any]
    show: Callable[[Any], str] = str  # as one would write it
    value: Callable[[Any], Any] = lambda value: value  # as the configuration API answers it
    repeatable: bool = False  # each flag adds to a tuple
    boolean: bool = False  # the flag alone means true


def parse_integer(text: str) -> int:
    """Parse an integer in any of Go's notations (`10`, `0x1f`, `017`, `0b1`, `1_000`) that fits 64 bits."""
    if _INTEGER.fullmatch(text) is None:
        raise ValueError("an integer expected")
    sign, digits = (text[0], text[1:]) if text[0] in "+-" else ("", text)
    digits = digits.replace("_", "")
    octal = len(digits) > 1 and digits[0] == "0" and digits[1].isdigit()
    number = int(sign + digits, 8) if octal else int(sign + digits, 0)
    if not _SMALLEST <= number <= _LARGEST:
        raise ValueError("value out of range")
    return number


def parse_boolean(text: str) -> bool:
    """Parse `1 t T TRUE true True` or `0 f F FALSE false False`."""
    try:
        return _BOOLEANS[text]
    except KeyError:
        raise ValueError("true or false expected") from None


def without_secrets(text: str) -> str:
    """Return `text` with the user, password and query values of every URL in it replaced by `***`."""
    return _QUERY_VALUE.sub(r"\1***", _USER.sub(r"\1***@", text))


def _string_from_file(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a string expected")
    return value


def _integer_from_file(value: Any) -> int:
    if isinstance(value, str) and re.fullmatch("[+-]?[0-9]+", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not _SMALLEST <= value <= _LARGEST:
        raise ValueError("an integer expected")
    return value


def _boolean_from_file(value: Any) -> bool:
    if isinstance(value, str):
        return parse_boolean(value)
    if not isinstance(value, bool):
        raise ValueError("true or false expected")
    return value


def _duration_from_file(value: Any) -> int:
    if isinstance(value, str):
        return durations.parse(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("a duration expected, as a string or in milliseconds")
    return value * 1_000_000


def _strings_from_file(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(value.split(",")) if value else ()
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError("a list of strings expected")
    return tuple(value)


def _floats_from_flag(text: str) -> tuple[float, ...]:
    return _descending([float(one) for one in text.split(",")])


def _floats_from_file(value: Any) -> tuple[float, ...]:
    if isinstance(value, str):
        return _floats_from_flag(value) if value else ()
    if not isinstance(value, list) or not all(isinstance(one, int | float) and one is not True for one in value):
        raise ValueError("a list of numbers expected")
    return _descending([float(one) for one in value])


def _descending(numbers: list[float]) -> tuple[float, ...]:
    return tuple(sorted(numbers, reverse=True))


def words(name: str, meanings: Mapping[str, int], *, empty: int | None = None, boolean: bool = False) -> Kind:
    """Return a kind of exactly these words, in any case; the value is the number of the word.

    `empty` is what an empty string in the config file means.
    """

    def read(text: str) -> int:
        try:
            return meanings[text.lower()]
        except KeyError:
            raise ValueError(f"one of {', '.join(meanings)} expected") from None

    def from_file(value: Any) -> int:
        if value == "" and empty is not None:
            return empty
        if isinstance(value, bool) and boolean:
            return read(str(value))
        return read(_string_from_file(value))

    shown = {number: word for word, number in reversed([*meanings.items()])}
    return Kind(name, read, from_file, show=lambda value: shown[value], boolean=boolean)


STRING: Final = Kind("string", str, _string_from_file)
INTEGER: Final = Kind("int", parse_integer, _integer_from_file)
BOOLEAN: Final = Kind("", parse_boolean, _boolean_from_file, lambda value: "true" if value else "false", boolean=True)
DURATION: Final = Kind("duration", durations.parse, _duration_from_file, durations.show)
STRINGS: Final = Kind("value", lambda text: (text,), _strings_from_file, ",".join, list, repeatable=True)
ADDRESSES: Final = Kind(  # host:port or URL; passwords in them are never shown
    "value",
    lambda text: (text,),
    _strings_from_file,
    lambda addresses: ",".join(map(without_secrets, addresses)),
    lambda addresses: list(map(without_secrets, addresses)),
    repeatable=True,
)
FLOATS: Final = Kind(  # kept in descending order
    "value", _floats_from_flag, _floats_from_file, lambda numbers: ",".join(map(str, numbers)), list, repeatable=True
)
LEVEL: Final = words("level", {"debug": 1, "info": 2, "warn": 3, "error": 4, "fatal": 5})
TLS_VERSION: Final = words("version", {"tls1.0": 769, "tls1.1": 770, "tls1.2": 771, "tls1.3": 772}, empty=771)
TLS_REQUIRED: Final = words(
    "value",
    {"false": 0, "0": 0, "f": 0, "true": 2, "1": 2, "t": 2, "tcp-https": 1},
    boolean=True,
)

_GUESSED: Final = ((bool, BOOLEAN), (int, INTEGER), (str, STRING), (tuple, STRINGS))


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a program."""

    name: str  # of the field
    flag: str  # without dashes
    key: str  # in the config file and the configuration API; empty: not there
    kind: Kind
    help: str
    shown: str | None  # instead of a default that differs from machine to machine

    def default(self, options: type[Any]) -> str:
        """Return the default as an operator would write it."""
        return self.kind.show(getattr(options(), self.name)) if self.shown is None else self.shown


def option(
    default: Any,
    help: str,
    *,
    kind: Kind | None = None,
    flag: str = "",
    key: str | None = None,
    shown: str | None = None,
) -> Any:
    """Return a dataclass field that is a setting.

    `default` may be written as on the command line (`"1m"` for a duration), or be a function that makes it; then
    `shown` is displayed. Flag and config key are the field's name unless given; `key=""` keeps it out of the file.
    """
    if kind is None:
        kind = next(kind for type_, kind in _GUESSED if isinstance(default, type_))
    metadata = {"setting": (flag, key, kind, help, shown)}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    if isinstance(default, str) and kind is not STRING:
        default = kind.from_flag(default)
    return dataclasses.field(default=default, metadata=metadata)


def settings(options: type[Any]) -> tuple[Setting, ...]:
    """Return every setting that the dataclass `options` describes, in its order."""
    found = []
    for field in dataclasses.fields(options):
        if "setting" in field.metadata:
            flag, key, kind, help_text, shown = field.metadata["setting"]
            flag = flag or field.name.replace("_", "-")
            key = flag.replace("-", "_") if key is None else key
            found.append(Setting(field.name, flag, key, kind, help_text, shown))
    return tuple(found)


def by_key(options: type[Any]) -> dict[str, Setting]:
    """Return the settings of the config file and the configuration API, by their keys."""
    return {setting.key: setting for setting in settings(options) if setting.key}


def value_of(options: Any, key: str) -> Any:
    """Return the answer of the configuration API for `key`: a string for a string, else a value for JSON.

    Raises `KeyError` for an unknown setting.
    """
    setting = by_key(type(options))[key]
    return setting.kind.value(getattr(options, setting.name))
