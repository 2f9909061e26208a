"""Values as bodies of messages: encoded by their type, decoded by an annotation."""

import dataclasses
import datetime
import decimal
import enum
import uuid
from typing import Any, Literal, NotRequired, TypedDict

import pydantic
import pytest

from lapwing.client import bodies
from lapwing.errors import ConfigError


class Kind(enum.Enum):
    CARD = "card"


@dataclasses.dataclass
class Line:
    article: str
    count: int = 1


@dataclasses.dataclass
class Order:
    id: int
    total: float
    lines: list[Line]
    kind: Kind = Kind.CARD
    note: str | None = None
    tags: dict[str, int] = dataclasses.field(default_factory=dict)
    state: Literal["new", "paid"] = "new"
    at: datetime.datetime | None = None
    price: decimal.Decimal = decimal.Decimal("1.50")
    key: uuid.UUID | None = None


class Paid(TypedDict):
    id: int
    by: NotRequired[str]


class Model(pydantic.BaseModel):
    id: int
    name: str = ""


NOON = datetime.datetime(2026, 11, 18, 12, 30)
ORDER = Order(1, 2.0, [Line("a"), Line("b", 3)], note="x", tags={"t": 1}, key=uuid.UUID(int=7), at=NOON)


@pytest.fixture(params=["standard library", "msgspec"], autouse=True)
def json_library(request, monkeypatch):
    if request.param == "msgspec":
        pytest.importorskip("msgspec", reason="msgspec is not installed: make setup installs it")
    else:
        monkeypatch.setattr(bodies, "_msgspec", lambda: None)
    return request.param


def decoded(annotation: Any, body: bytes) -> Any:
    decode = bodies.decoder(annotation)
    assert decode is not None
    return decode(body)


def test_values_come_back_as_they_were_published():
    for annotation, value in ((Order, ORDER), (dict, {"a": [1, None]}), (Paid, {"id": 1}), (str, "Größe")):
        assert decoded(annotation, bodies.encode(value)[0]) == value
    assert decoded(Model, bodies.encode(Model(id=1, name="x"))[0]) == Model(id=1, name="x")
    assert decoded(Order | None, b"null") is None
    assert decoded(dict[str, int], b'{"a":1}') == {"a": 1}


def test_bytes_are_what_they_are_and_all_others_name_their_type():
    assert bodies.decoder(bytes) is None
    assert bodies.encode(bytearray(b"x")) == (b"x", "")
    assert bodies.encode("x") == (b"x", "text/plain; charset=utf-8")
    assert {bodies.encode(value)[1] for value in (ORDER, {"a": 1}, Model(id=1))} == {"application/json"}


def test_no_body_has_a_number_that_json_has_not(json_library):
    for word in (b"NaN", b"Infinity", b"-Infinity"):
        with pytest.raises(ValueError):
            decoded(dict, b'{"a":%b}' % word)
    if json_library == "msgspec":
        assert bodies.encode({"a": float("nan")})[0] == b'{"a":null}'
    else:
        with pytest.raises(ValueError, match="JSON"):
            bodies.encode({"a": float("nan")})


def test_a_struct_of_msgspec_is_a_body():
    msgspec = pytest.importorskip("msgspec", reason="msgspec is not installed: make setup installs it")
    bodies_msgspec = pytest.MonkeyPatch()
    bodies_msgspec.setattr(bodies, "_msgspec", lambda: msgspec)
    struct = msgspec.defstruct("Shipped", [("id", int)])

    assert decoded(struct, bodies.encode(struct(3))[0]) == struct(3)
    with pytest.raises(msgspec.ValidationError):
        decoded(struct, b'{"id":"x"}')
    bodies_msgspec.undo()


@pytest.mark.parametrize(
    ("annotation", "body", "place"),
    [
        (Order, b'{"id":1,"total":2,"lines":[{"article":"a"},{"article":5}]}', r"lines\[(1|\.\.\.)\]\.article"),
        (Order, b'{"id":1,"lines":[]}', "total"),
        (Order, b'{"id":true,"total":1,"lines":[]}', "id"),
        (Order, b'{"id":1,"total":2,"lines":[],"state":"lost"}', "state"),
        (Paid, b'{"by":"x"}', "id"),
        (dict, b"[1]", "object"),
        (dict, b"{", "JSON|Expecting|truncated"),
        (dict[str, int], b'{"a":"b"}', "int"),
        (Model, b'{"id":"x"}', "id"),
        (str, b"\xff", "utf-8"),
    ],
)
def test_a_body_that_is_none_names_the_place(annotation, body, place):
    with pytest.raises(Exception, match=place):
        decoded(annotation, body)


@pytest.mark.parametrize("annotation", [int, list, object, complex, "Order", Kind])
def test_an_annotation_that_no_body_decodes_into_is_refused(annotation):
    with pytest.raises(ConfigError, match="a body cannot be decoded into"):
        bodies.decoder(annotation)


@pytest.mark.parametrize("value", [5, None, [1], object(), Order, {"a": object()}])
def test_a_value_that_is_no_body_is_refused(value):
    with pytest.raises(TypeError):
        bodies.encode(value)
