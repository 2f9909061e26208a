"""The number of examples that Hypothesis tries: few in `make quick`, many in `make soak-long`."""

import os


def examples(count: int, soak: int | None = None) -> int:
    """Return `count`, a fifth of it in `make quick`, and `soak` (or `count`) in `make soak-long`."""
    if os.environ.get("LAPWING_SOAK"):
        return soak or count
    return count // 5 if os.environ.get("LAPWING_QUICK") else count
