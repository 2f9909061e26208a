"""What a topic or a channel may be called."""

import re
from typing import Final

EPHEMERAL: Final = "#ephemeral"
LONGEST: Final = 64  # bytes, the suffix included
OWN: Final = "_lapwing"  # how lapwing's own topics begin

_NAME: Final = re.compile(rb"[.a-zA-Z0-9_-]+(#ephemeral)?")


def valid(name: str | bytes) -> bool:
    """Whether `name` may name a topic or a channel."""
    if isinstance(name, str):
        try:
            name = name.encode("ascii")
        except UnicodeEncodeError:
            return False
    return len(name) <= LONGEST and _NAME.fullmatch(name) is not None


def ephemeral(name: str) -> bool:
    """Whether what is called so lives only as long as somebody uses it."""
    return name.endswith(EPHEMERAL)


def own(topic: str) -> bool:
    """Whether the topic is one that lapwing keeps for itself: lists leave it out unless asked."""
    return topic.startswith(OWN)
