"""The parts of PySpark 4.2 that 4.0 and 4.1 lack: the place of a query for its source, and Java 25."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final


def _pyspark() -> tuple[int, ...]:
    """Return the version of PySpark without importing it; the newest where it is not installed."""
    try:
        return tuple(int(part) for part in version("pyspark").split(".")[:2])
    except (PackageNotFoundError, ValueError):
        return (4, 3)


# Before 4.2, `latestOffset` gets neither the offsets of the query nor a limit. After a restart a source would not know
# what was read, so that the log of a broker that is away would be read twice
HAS_STREAMS: Final = _pyspark() >= (4, 2)
NEWEST_JAVA: Final = None if HAS_STREAMS else 21
NO_STREAMS: Final = (
    "streams from topics need PySpark 4.2 or later: older ones do not give a source the place of its query. "
    "Batch reads, writes of batches and streams, and the replay pipeline work"
)
