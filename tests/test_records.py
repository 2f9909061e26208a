"""Our dataclasses behave as those of the standard library, but for the check of `frozen` at run time."""

import copy
import dataclasses
import pickle
from dataclasses import field

import pytest

from lapwing.records import dataclass


@dataclass(slots=True)
class Command:
    """One with every kind of field."""

    topic: str
    bodies: list[bytes] = field(default_factory=list)
    seen: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """One that is a key."""

    size: int = 5
    count: int = 7


@dataclass(frozen=True)
class NarrowLimits(Limits):
    """One with a field more."""

    depth: int = 1


@dataclass(slots=True)
class Nothing:
    """One without a field."""


@dataclass(slots=True, eq=False)
class Identity:
    """One that is equal to nothing but itself."""

    name: str


@dataclass(frozen=True, slots=True)
class Spoken:
    """One with methods of its own."""

    name: str

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spoken) and other.name.lower() == self.name.lower()

    def __hash__(self) -> int:
        return 5


def test_instances_with_equal_values_are_equal() -> None:
    assert Command("orders", [b"1"], seen=1) == Command("orders", [b"1"], seen=2)
    assert Command("orders", [b"1"]) != Command("orders", [b"2"])
    assert Nothing() == Nothing()


def test_instances_of_other_classes_are_not_equal() -> None:
    assert Nothing() != Command("orders")
    assert Limits() != NarrowLimits()
    assert Limits() != (5, 7)


def test_without_eq_an_instance_equals_itself_only() -> None:
    one, other = Identity("a"), Identity("a")

    assert one == one
    assert one != other
    assert len({one, other}) == 2


def test_frozen_instances_are_hashable_and_others_are_not() -> None:
    assert {Limits(size=1): "one"}[Limits(size=1)] == "one"
    with pytest.raises(TypeError, match="unhashable"):
        hash(Command("orders"))


def test_the_text_names_the_fields() -> None:
    assert repr(Command("orders", [b"1"])) == "Command(topic='orders', bodies=[b'1'])"
    assert repr(NarrowLimits()) == "NarrowLimits(size=5, count=7, depth=1)"


def test_an_instance_that_holds_itself_has_a_text() -> None:
    command = Command("orders")
    command.bodies.append(command)  # type: ignore[arg-type]

    assert repr(command) == "Command(topic='orders', bodies=[...])"


def test_methods_of_the_class_itself_stay() -> None:
    assert repr(Spoken("a")) == "<a>"
    assert Spoken("a") == Spoken("A")
    assert hash(Spoken("a")) == 5


def test_the_functions_of_the_standard_library_work() -> None:
    assert dataclasses.replace(Limits(), size=1) == Limits(size=1)
    assert dataclasses.asdict(NarrowLimits()) == {"size": 5, "count": 7, "depth": 1}
    assert [each.name for each in dataclasses.fields(Command)] == ["topic", "bodies", "seen"]


@pytest.mark.parametrize("one", [Command("orders", [b"1"]), Limits(size=1), Nothing()])
def test_instances_are_copied_and_pickled(one: object) -> None:
    assert copy.deepcopy(one) == one
    assert pickle.loads(pickle.dumps(one)) == one


def test_instances_match_patterns() -> None:
    match Command("orders", [b"1"]):
        case Command(topic, bodies):
            assert (topic, bodies) == ("orders", [b"1"])
