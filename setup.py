"""The one thing pyproject.toml cannot say: what is compiled, optional where no compiler is."""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup

try:
    if os.environ.get("LAPWING_PURE_BUILD"):  # scripts/run: the demo starts at once, and the kernel is built beside it
        raise ImportError
    from Cython.Build import cythonize

    compiled = {
        "lapwing.kernel._speed": "kernel/_speed.pyx",
        "lapwing.kernel._receiver": "kernel/_receiver.pyx",
        "lapwing.kernel._tail": "kernel/tail.py",
        "lapwing.kernel._road": "kernel/_road.pyx",
        "lapwing.broker.channel._ledger": "broker/channel/ledger.py",
        "lapwing.broker.channel._subscription": "broker/channel/subscription.py",
        "lapwing.broker.channel._passed_by": "broker/channel/passed_by.py",
        "lapwing.broker.channel._keys": "broker/channel/keys.py",
        "lapwing.broker.channel._delivery": "broker/channel/delivery.py",
    }
    if sys.platform == "linux":
        compiled["lapwing.net.sockets._sockets"] = "net/sockets/_sockets.pyx"
    made = [path for path in Path("src").rglob("*.c") if path.with_suffix(".py").exists()]
    types = max(path.stat().st_mtime for path in Path("src").rglob("*.pxd"))
    extensions = cythonize(
        [
            Extension(name, [f"src/lapwing/{source}"], extra_compile_args=["-O3"], optional=True)
            for name, source in compiled.items()
        ],
        language_level=3,
        compiler_directives={"annotation_typing": False},  # those of Python files are for readers and mypy
        include_path=["src"],
        # Cython does not see that a Python file needs the types of another one, which may have changed
        force=any(path.stat().st_mtime < types for path in made),
    )
    for extension in extensions:
        extension.optional = True  # cythonize does not keep it: without a compiler the pure kernel serves
except ImportError:
    extensions = []

setup(ext_modules=extensions, options={"build_ext": {"parallel": os.cpu_count()}})
