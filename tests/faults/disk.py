"""Faults of a disk and of a clock, from outside the process: `shim.c` loaded into it, and its orders."""

import contextlib
import errno
import mmap
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

READS, WRITES, SYNCS, OPENS = 1, 2, 4, 8
_ORDERS = struct.Struct("=IIIIqQ")


def compiler() -> str | None:
    """The C compiler that builds the shim; None where there is none."""
    return shutil.which("cc") or shutil.which("gcc")


class Faults:
    """The orders of one process, which obeys them at once."""

    def __init__(self, folder: Path, below: Path, name: str | None = None) -> None:
        """Build the shim in `folder`; it concerns files below `below` whose path has `name` in it."""
        library = folder / "faults.so"
        command = compiler()
        assert command is not None
        source = Path(__file__).with_name("shim.c")
        if not library.exists():
            subprocess.run([command, "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
        orders = folder / "orders"
        orders.write_bytes(bytes(_ORDERS.size))
        with orders.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _ORDERS.size)
        self.env = {"LD_PRELOAD": str(library), "FAULTS": str(orders), "FAULTS_BELOW": str(below)}
        if name is not None:
            self.env["FAULTS_NAME"] = name

    def _orders(self) -> list[int]:
        return list(_ORDERS.unpack(self._map[: _ORDERS.size]))

    def _order(self, **fields: int) -> None:
        names = ("calls", "error", "every", "failed", "shift", "delay")
        values = dict(zip(names, self._orders(), strict=True)) | fields
        for name, place in zip(names, (0, 4, 8, 12, 16, 24), strict=True):
            if name in fields:  # the process counts in the others meanwhile
                form = {"shift": "=q", "delay": "=Q"}.get(name, "=I")
                self._map[place : place + struct.calcsize(form)] = struct.pack(form, values[name])

    @property
    def failed(self) -> int:
        """How many calls have failed."""
        return self._orders()[3]

    @contextlib.contextmanager
    def failing(self, calls: int, *, error: int = errno.EIO, every: int = 1) -> Iterator[None]:
        """Have one in `every` of these calls fail."""
        self._order(error=error, every=every)
        self._order(calls=calls)
        try:
            yield
        finally:
            self._order(calls=0)

    def shift_clock(self, seconds: float) -> None:
        """Set the wall clock of the process that far from the machine's."""
        self._order(shift=int(seconds * 1e9))

    def delay_syncs(self, seconds: float) -> None:
        """Have each fsync take that much longer."""
        self._order(delay=int(seconds * 1e6))
