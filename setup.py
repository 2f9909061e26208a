"""The one thing pyproject.toml cannot say: the compiled kernel, optional where no compiler is."""

import sys

from setuptools import Extension, setup

try:
    from Cython.Build import cythonize

    compiled = {"lapwing.kernel._speed": "kernel/_speed.pyx"}
    if sys.platform == "linux":
        compiled["lapwing.net._sockets"] = "net/_sockets.pyx"
    extensions = cythonize(
        [
            Extension(name, [f"src/lapwing/{source}"], extra_compile_args=["-O3"], optional=True)
            for name, source in compiled.items()
        ],
        language_level=3,
    )
    for extension in extensions:
        extension.optional = True  # cythonize does not keep it: without a compiler the pure kernel serves
except ImportError:
    extensions = []

setup(ext_modules=extensions)
