"""Mutated inputs by number: `mutate.c`, built when it is first used."""

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from itertools import accumulate, pairwise
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
BUILT = Path(__file__).parent.parent.parent / "build" / "fuzz"
MOST = 1 << 14  # bytes of an input at most


def load_corpus(decoder: str) -> list[bytes]:
    """Return the inputs of a decoder, one per line of its file, in hex."""
    return [bytes.fromhex(line) for line in (CORPUS / f"{decoder}.txt").read_text().splitlines()]


@functools.cache
def _library() -> ctypes.CDLL:
    source, library = Path(__file__).with_name("mutate.c"), BUILT / "mutate.so"
    if not library.exists() or library.stat().st_mtime < source.stat().st_mtime:
        compiler = shutil.which("cc") or shutil.which("gcc")
        assert compiler is not None, "fuzzing needs a C compiler: install gcc"
        BUILT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILT) as folder:  # others may load it meanwhile
            built = os.path.join(folder, "mutate.so")
            subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", built, str(source)], check=True)
            os.replace(built, library)
    return ctypes.CDLL(str(library))


class Mutation:
    """The mutated inputs of one corpus. The same number always gives the same input."""

    def __init__(self, corpus: list[bytes], at_once: int = 1) -> None:
        """Make `at_once` inputs with each call."""
        self._mutate = _library().mutate
        self._corpus, self._count = b"".join(corpus), len(corpus)
        self._ends = (ctypes.c_uint32 * len(corpus))(*accumulate(map(len, corpus)))
        self._at_once = at_once
        self._out = ctypes.create_string_buffer(at_once * MOST)
        self._until = (ctypes.c_uint32 * (at_once + 1))()

    def inputs(self, first: int) -> list[bytes]:
        """Return the inputs from the number `first` on."""
        until = ctypes.byref(self._until, ctypes.sizeof(ctypes.c_uint32))
        self._mutate(ctypes.c_uint64(first), self._at_once, self._corpus, self._ends, self._count, self._out, until)
        data = memoryview(self._out)
        return [bytes(data[begin:end]) for begin, end in pairwise(self._until)]
