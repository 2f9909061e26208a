"""The names that topics and channels may have, and the version of NSQ that lapwing implements."""

import re
from typing import Final

NSQ_VERSION: Final = "1.3.0"  # clients read it in answers

EPHEMERAL: Final = "#ephemeral"
LONGEST: Final = 64  # bytes, the suffix included
OWN: Final = "_lapwing"  # how lapwing's own topics begin

DEAD: Final = "dead"  # how dead-letter topics end unless a setting names another, and their channel
DEAD_REASONS: Final = ("attempts", "rejected", "expired", "overflow")  # why a message becomes a dead letter

POLICY: Final = f'a policy is named like a topic: letters, digits, ".", "_", "-", at most {LONGEST}, not "." or ".."'

_NAME: Final = re.compile(rb"[.a-zA-Z0-9_-]+(#ephemeral)?")


def valid(name: str | bytes) -> bool:
    """Return whether `name` may name a topic or a channel."""
    if isinstance(name, str):
        try:
            name = name.encode("ascii")
        except UnicodeEncodeError:
            return False
    return len(name) <= LONGEST and _NAME.fullmatch(name) is not None


def valid_policy(name: str) -> bool:
    """Return whether `name` may name a policy. An address cannot end with `.` or `..`: clients shorten it."""
    return valid(name) and name not in (".", "..")


def ephemeral(name: str) -> bool:
    """Return whether a topic or channel of that name lives only as long as somebody uses it."""
    return name.endswith(EPHEMERAL)


def own(topic: str) -> bool:
    """Return whether the topic is one of lapwing's own, which lists leave out unless asked."""
    return topic.startswith(OWN)


def dead_letters(topic: str, channel: str) -> bool:
    """Return whether the channel holds dead letters, which wait for an operator and not for a consumer."""
    return channel == DEAD and topic.endswith(f".{DEAD}")
