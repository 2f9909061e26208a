"""The one thing pyproject.toml cannot say: the compiled kernel, optional where no compiler is."""

from setuptools import Extension, setup

try:
    from Cython.Build import cythonize

    extensions = cythonize(
        [Extension("lapwing.kernel._speed", ["src/lapwing/kernel/_speed.pyx"], extra_compile_args=["-O3"], optional=True)],
        language_level=3,
    )
except ImportError:
    extensions = []

setup(ext_modules=extensions)
