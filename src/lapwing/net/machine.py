"""Facts about the machine that a daemon runs on."""

from typing import Final

_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


def boot_id() -> str:
    """Return the id of this run of the machine: another one after each start. Empty where the system has none."""
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
