"""The names that `import lapwing` offers."""

import subprocess
import sys

import lapwing


def test_every_exported_name_exists_and_is_imported_on_its_first_use():
    script = "import sys, lapwing; print(*(m for m in sys.modules if m.startswith('lapwing.') or m == 'asyncio'))"
    loaded = subprocess.check_output([sys.executable, "-c", script], text=True, timeout=60)

    assert loaded.split() == []
    assert all(getattr(lapwing, name) is not None for name in lapwing.__all__)
    assert set(lapwing.__all__) <= set(dir(lapwing))
    assert sorted(lapwing.__all__) == sorted([*lapwing._ROOMS, "__version__"])


def test_every_error_of_the_client_is_exported():
    import lapwing.client.errors as errors

    public = {name for name, kind in vars(errors).items() if isinstance(kind, type) and not name.startswith("_")}
    assert public - set(lapwing.__all__) == set()
