"""File names of nsq_to_file. Pure: the time is an argument."""

import os
import re
import socket
import time
from dataclasses import dataclass
from typing import Final

from lapwing.tools.program import Failure

MISSING_REVISION: Final = "missing <REV> in --filename-format when gzip, rotation, or work dir enabled"
_KNOWN: Final = re.compile(r"%[YymBbdAaHIMSpZz%]")


def datetime_text(pattern: str, now: float) -> str:
    """Return `pattern` with the known codes replaced by the local time."""
    local = time.localtime(now)
    return _KNOWN.sub(lambda code: "%" if code[0] == "%%" else time.strftime(code[0], local), pattern)


def host_text(identifier: str, hostname: str | None = None) -> str:
    """Return the text for `<HOST>`: the short host name, or as the operator chose."""
    hostname = hostname or socket.gethostname()
    short = hostname.partition(".")[0]
    return identifier.replace("<SHORT_HOST>", short).replace("<HOSTNAME>", hostname) if identifier else short


@dataclass(frozen=True, slots=True)
class Names:
    """The file names of one topic."""

    pattern: str  # --filename-format with everything filled in but the time and the revision
    datetime_format: str
    revisions: bool

    @classmethod
    def of(
        cls, topic: str, *, filename_format: str, datetime_format: str, host: str, revisions: bool, gzip: bool
    ) -> "Names":
        """Return the names of a topic. Raises `Failure` if revisions are needed and the format has no `<REV>`."""
        if revisions and "<REV>" not in filename_format:
            raise Failure(MISSING_REVISION)
        pattern = filename_format.replace("<TOPIC>", topic).replace("<HOST>", host).replace("<PID>", str(os.getpid()))
        if gzip and not pattern.endswith(".gz"):
            pattern += ".gz"
        return cls(pattern, datetime_format, revisions)

    def at(self, now: float) -> str:
        """Return the name for a time, with `<REV>`."""
        return self.pattern.replace("<DATETIME>", datetime_text(self.datetime_format, now))

    def revision(self, name: str, number: int) -> str:
        """Return the name with a revision number."""
        return name.replace("<REV>", f"-{number:06d}" if self.revisions else "")
