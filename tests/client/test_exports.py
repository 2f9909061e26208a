"""The names that `import lapwing` offers."""

import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules

import lapwing
import lapwing.client
from lapwing.errors import LapwingError


def test_every_exported_name_exists_and_is_imported_on_its_first_use():
    script = "import sys, lapwing; print(*(m for m in sys.modules if m.startswith('lapwing.') or m == 'asyncio'))"
    loaded = subprocess.check_output([sys.executable, "-c", script], text=True, timeout=60)

    assert loaded.split() == []
    assert all(getattr(lapwing, name) is not None for name in lapwing.__all__)
    assert set(lapwing.__all__) <= set(dir(lapwing))
    assert sorted(lapwing.__all__) == sorted([*lapwing._ROOMS, "__version__"])


def test_every_error_of_the_client_is_exported():
    modules = [import_module(f"lapwing.client.{each.name}") for each in iter_modules(lapwing.client.__path__)]
    kinds = {kind for module in modules for kind in vars(module).values() if isinstance(kind, type)}
    errors = {kind.__name__ for kind in kinds if issubclass(kind, LapwingError) and kind.__name__[0] != "_"}
    translated = {"ProtocolError", "HttpFailed"}  # of other rooms: the client raises an error of its own for each

    assert errors - set(lapwing.__all__) == translated
