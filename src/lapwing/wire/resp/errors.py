"""The error lines of Redis that clients read."""

from __future__ import annotations

from typing import Final

from lapwing.errors import LapwingError

_SHOWN: Final = 128  # bytes of an unknown command and of its arguments that are repeated


class ErrorReply(LapwingError):
    """A command is refused: answer the line, and carry on with the next command.

    The line may hold bytes of the client, decoded as latin-1.
    """

    def __init__(self, line: str) -> None:
        super().__init__(line)
        self.line = line

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ErrorReply) and other.line == self.line

    def __hash__(self) -> int:
        return hash(self.line)


def text(word: bytes) -> str:
    """Return a client's word as it stands in an error line."""
    return word.decode("latin-1")


def syntax_error() -> ErrorReply:
    """Return the error of options that nobody understands."""
    return ErrorReply("ERR syntax error")


def not_an_integer() -> ErrorReply:
    """Return the error of a number that is none."""
    return ErrorReply("ERR value is not an integer or out of range")


def invalid_id() -> ErrorReply:
    """Return the error of an entry id that is none."""
    return ErrorReply("ERR Invalid stream ID specified as stream command argument")


def wrong_arity(command: str) -> ErrorReply:
    """Return the error of too few or too many words; a subcommand is named `xgroup|create`."""
    return ErrorReply(f"ERR wrong number of arguments for '{command}' command")


def unknown_subcommand(command: str, word: bytes) -> ErrorReply:
    """Return the error of a subcommand that does not exist."""
    return ErrorReply(f"ERR unknown subcommand '{text(word[:_SHOWN])}'. Try {command.upper()} HELP.")


def wrong_subcommand(command: str, word: bytes) -> ErrorReply:
    """Return the error of a subcommand whose words cannot be understood."""
    name = text(word[:_SHOWN])
    return ErrorReply(f"ERR unknown subcommand or wrong number of arguments for '{name}'. Try {command.upper()} HELP.")


def unknown_command(words: list[bytes]) -> ErrorReply:
    """Return the error of a command that does not exist, with the begin of its arguments."""
    if len(words) == 1:
        return ErrorReply(f"ERR unknown command '{text(words[0][:_SHOWN])}'")
    shown = ""
    for word in words[1:]:
        if len(shown) >= _SHOWN:
            break
        shown += f"'{text(word[: _SHOWN - len(shown)])}' "
    name = text(words[0][:_SHOWN])
    return ErrorReply(f"ERR unknown command '{name}', with args beginning with: {shown}")


def no_group(key: bytes, group: bytes, where: str = "") -> ErrorReply:
    """Return the error of a stream or a group that is not there."""
    return ErrorReply(f"NOGROUP No such key '{text(key)}' or consumer group '{text(group)}'{where}")


def no_group_of_key(key: bytes, group: bytes) -> ErrorReply:
    """Return the error of a group that an existing stream does not have."""
    return ErrorReply(f"NOGROUP No such consumer group '{text(group)}' for key name '{text(key)}'")


NO_SUCH_KEY: Final = "ERR no such key"
KEY_MUST_EXIST: Final = (
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM "
    "option to create an empty stream automatically."
)
BUSY_GROUP: Final = "BUSYGROUP Consumer Group name already exists"
NO_AUTH: Final = "NOAUTH Authentication required."
WRONG_PASS: Final = "WRONGPASS invalid username-password pair or user is disabled."
TOO_LONG: Final = "ERR string exceeds maximum allowed size (proto-max-bulk-len)"
