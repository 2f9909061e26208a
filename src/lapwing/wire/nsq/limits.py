"""The limits of a client's commands."""

from lapwing.records import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that the parser enforces; the defaults are NSQ's."""

    max_message: int = 1024 * 1024  # bytes of one body
    max_body: int = 5 * 1024 * 1024  # bytes of an MPUB, an IDENTIFY or an AUTH
    max_rdy: int = 2500
    max_req_timeout: int = 3_600_000_000_000  # ns
    max_defer: int = 0  # ns, of a DPUB; 0: as `max_req_timeout`
    longest_line: int = 16 * 1024  # bytes, the line feed included
    tls_required: bool = False

    @property
    def max_count(self) -> int:
        """The most messages of an MPUB: as many as fit when each has a single byte."""
        return (self.max_body - 4) // 5
