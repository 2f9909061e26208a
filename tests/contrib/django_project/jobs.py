"""Tasks."""

import os
import time
from pathlib import Path
from typing import Any

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

NOTES = Path(os.environ["TASKS_DATABASE"] + ".notes")


@task
def note(text: str) -> str:
    """Add a line to the notes."""
    with NOTES.open("a") as notes:
        notes.write(f"{text}\n")
    return text.upper()


@task
async def wait_and_double(number: int) -> int:
    """Return twice the number."""
    return 2 * number


@task(takes_context=True)
def attempt(context: Any) -> int:
    """Return which attempt this is."""
    return context.attempt


@task
def fail() -> None:
    """Fail."""
    raise ValueError("no such card")


@task(backend="again", takes_context=True)
def fail_twice(context: Any) -> int:
    """Fail twice, then return the attempt."""
    if context.attempt < 3:
        raise OSError("try again")
    return context.attempt


@task
def opaque() -> object:
    """Return what JSON does not have."""
    return object()


@task
def leave() -> None:
    """Raise what ends a program."""
    raise SystemExit(3)


@task
def block(seconds: float) -> None:
    """Take long."""
    note.func("begun")
    time.sleep(seconds)


@task
def kill() -> None:
    """End the worker at once, as a kill does."""
    note.func("killed")
    os._exit(1)
