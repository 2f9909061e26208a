"""Select messages for nsq_to_nsq: required fields, required values, whitelisted fields."""

import json
import math
from decimal import Decimal
from enum import Enum
from typing import Any

from lapwing.wire.nsq.json import compact_json


class Fate(Enum):
    """The fate of a message that is not published."""

    DROP = "drop"  # finished
    RETRY = "retry"  # requeued, with backoff


class Selection:
    """The JSON flags of nsq_to_nsq. Without any, every body is published as it is."""

    def __init__(self, *, field: str = "", value: str = "", whitelist: tuple[str, ...] = ()) -> None:
        self._field = field
        self._value = value
        self._whitelist = whitelist

    @property
    def active(self) -> bool:
        return bool(self._field or self._whitelist)

    def apply(self, body: bytes) -> bytes | Fate:
        """Return what to publish, or the fate of the message. Raises `ValueError` unless it is a JSON object."""
        document = read_object(body)
        if self._field:
            if self._field not in document:
                return Fate.RETRY if self._value else Fate.DROP
            if self._value and not matches(document[self._field], self._value):
                return Fate.DROP
        if not self._whitelist:
            return body
        return write_json({name: document[name] for name in self._whitelist if name in document}).encode()


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def read_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in `body`, numbers as 64-bit floats. Raises `ValueError`."""
    text = body.decode("utf-8", "replace")
    try:
        document = json.loads(text, parse_int=_float, parse_float=_float, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if not isinstance(document, dict):
        raise ValueError(f"{text[:40]!r} is not an object")
    return document


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"number {text[:40]} is out of range")
    return number


def matches(found: Any, wanted: str) -> bool:
    """Return whether a field has the required value; only strings and numbers can."""
    if isinstance(found, str):
        return found == wanted
    if isinstance(found, float):
        try:
            return float(wanted) == found
        except ValueError:
            return False
    return False


def write_json(document: Any) -> str:
    """Return compact JSON with sorted keys, and numbers as Go writes 64-bit floats."""
    if isinstance(document, dict):
        return "{" + ",".join(f"{_text(key)}:{write_json(document[key])}" for key in sorted(document)) + "}"
    if isinstance(document, list):
        return "[" + ",".join(map(write_json, document)) + "]"
    if isinstance(document, float):
        return write_number(document)
    return _text(document)


def _text(value: Any) -> str:
    return compact_json(value).decode()


def write_number(number: float) -> str:
    """Return the shortest digits of `number`: plain from 1e-6 to 1e21, with an exponent beyond."""
    if number == 0:
        return "-0" if math.copysign(1.0, number) < 0 else "0"
    if 1e-6 <= abs(number) < 1e21:
        text = f"{Decimal(repr(number)):f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa, _, exponent = repr(number).partition("e")
    if not exponent:
        mantissa, _, exponent = f"{Decimal(repr(number)):e}".partition("e")
    mantissa = mantissa.removesuffix(".0")
    return f"{mantissa}e{exponent[0]}{exponent[1:].lstrip('0')}"
