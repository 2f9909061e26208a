"""Replace methods of one object that has slots, and so no room for another one of its own."""

from collections.abc import Callable
from typing import Any


def overriding(thing: object, **methods: Callable[..., Any]) -> type[Any]:
    """Return the class of `thing` with other methods, which do not get the object; for `thing.__class__`."""
    kind = type(thing)
    return type(kind.__name__, (kind,), {"__slots__": (), **{name: staticmethod(one) for name, one in methods.items()}})
