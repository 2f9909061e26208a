"""Dataclasses that are cheap to define: a program that starts defines a hundred of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, **options):
        """Return the class as a dataclass of the standard library, with shared methods instead of compiled ones.

        The standard library compiles up to six methods for each class, which takes most of the time of importing it.
        Here only `__init__` is compiled. `frozen` makes instances hashable, and mypy refuses to change them; nothing
        does so when the program runs, which also makes them faster to build.
        """

        def define(cls):
            own = vars(cls)
            explicit = {name for name in ("__repr__", "__eq__", "__hash__") if own.get(name) is not None}
            made = dataclasses.dataclass(cls, repr=False, eq=False, **options)
            methods = {"__repr__": _repr}
            if eq:
                values = _compared(made)
                methods |= {"__eq__": _equal(values), "__hash__": _hash(values) if frozen else None}
            for name in methods.keys() - explicit:
                setattr(made, name, methods[name])
            return made

        return define if cls is None else define(cls)


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in dataclasses.fields(self) if each.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _compared(cls: Any) -> Callable[[Any], object]:
    """Return a function that gives the values by which an instance is compared."""
    names = [each.name for each in dataclasses.fields(cls) if each.compare]
    return attrgetter(*names) if names else lambda self: ()


def _equal(values: Callable[[Any], object]) -> Callable[[Any, Any], bool]:
    def __eq__(self: Any, other: Any) -> bool:
        return values(self) == values(other) if type(other) is type(self) else NotImplemented

    return __eq__


def _hash(values: Callable[[Any], object]) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __hash__
