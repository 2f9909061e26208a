"""lapwing run: run an application."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

from lapwing.cli.commands import Argument, Option, command
from lapwing.errors import ConfigError

_LOOK_EVERY: Final = 0.3  # s between two looks at the files


@command(example="lapwing run shop:app --reload")
def app(
    target: Annotated[str, Argument(help="A module, and the App in it: `shop:app` is `app` in shop.py.")],
    reload: Annotated[
        bool, Option("--reload", help="Start again when a Python file below this folder changes; for development.")
    ] = False,
) -> None:
    """Run the consumers of a `lapwing.App` until SIGTERM or Ctrl-C, which lets handlers finish; a second cancels them.

    The exit status is 0 after a signal, and 1 if no nsqd can be reached at the start.
    """
    if reload:
        raise SystemExit(_run_again_and_again([sys.executable, "-c", _CHILD, target]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until the app takes signals itself
    _load(target).run()


_CHILD: Final = "import sys; from lapwing.cli.main import main; sys.argv = ['lapwing', 'run', sys.argv[1]]; main()"


def _load(target: str) -> Any:
    """Return the application. Raises `ConfigError`."""
    from lapwing.client.app import App

    module, colon, name = target.partition(":")
    if not module or not colon or not name:
        raise ConfigError(f"{target!r}: expected a module and the name of an App in it, such as shop:app")
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module + ".").startswith(error.name + "."):
            raise  # it is there, and imports what is not
        raise ConfigError(f"no module named {error.name} in {os.getcwd()} or on the path") from error
    for part in name.split("."):
        if not hasattr(found, part):
            apps = [each for each, value in vars(found).items() if isinstance(value, App)]
            raise ConfigError(f"{module} has no {name}" + (f"; is it {module}:{apps[0]}?" if apps else ""))
        found = getattr(found, part)
    if not isinstance(found, App):
        raise ConfigError(f"{target} is not a lapwing.App but a {type(found).__name__}")
    return found


def _changes() -> Iterator[list[str]]:
    """Yield after each pause the Python files below this folder that have changed."""

    def times() -> dict[str, int]:
        found: dict[str, int] = {}
        for folder, below, files in os.walk("."):
            below[:] = [each for each in below if not each.startswith(".") and each != "__pycache__"]
            for name in files:
                if name.endswith(".py"):
                    path = Path(folder, name)
                    found[str(path)] = path.stat().st_mtime_ns if path.exists() else 0
        return found

    before = times()
    while True:
        time.sleep(_LOOK_EVERY)
        now = times()
        yield [path for path in {*before, *now} if before.get(path) != now.get(path)]
        before = now


def _run_again_and_again(command: list[str]) -> int:
    """Run a program and start it again at changes, until a signal ends this one; return its exit status."""
    ended = False

    def end(number: int, frame: Any) -> None:
        nonlocal ended
        ended = True
        if child.poll() is None and number == signal.SIGTERM:  # Ctrl-C reaches the child by itself
            child.send_signal(number)

    changes = _changes()
    child = subprocess.Popen(command)
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    while not ended:
        changed = next(changes)
        if changed and not ended:
            print(f"lapwing: {', '.join(sorted(changed))} changed: starting again", file=sys.stderr, flush=True)
            if child.poll() is None:
                child.terminate()
            child.wait()
            if not ended:
                child = subprocess.Popen(command)
                if ended:  # the signal came while the program was being started, and reached nobody
                    child.terminate()
    return child.wait()
