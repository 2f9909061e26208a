"""Contexts: clusters with a name, so that their addresses need not be repeated."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lapwing.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Context:
    """The addresses of a cluster, and the secret for it."""

    nsqd_http: list[str] = field(default_factory=list)
    nsqd_tcp: list[str] = field(default_factory=list)
    lookupd_http: list[str] = field(default_factory=list)
    auth_secret: str = ""


@dataclass(frozen=True, slots=True)
class Contexts:
    """Every context, and the name of the one that is used unless another is named."""

    current: str = ""
    known: dict[str, Context] = field(default_factory=dict)

    def named(self, name: str) -> Context:
        """Return the context of that name. Raises `ConfigError`."""
        if name not in self.known:
            there = f"; there are: {', '.join(self.known)}" if self.known else ""
            raise ConfigError(f"there is no context {name!r}{there}; `lapwing context add {name} ...` adds it")
        return self.known[name]


def path() -> Path:
    """Return the file that keeps the contexts; `LAPWING_CONTEXTS` names another."""
    if given := os.environ.get("LAPWING_CONTEXTS"):
        return Path(given)
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(home) / "lapwing" / "contexts.json"


def load() -> Contexts:
    """Return the contexts of the user. Raises `ConfigError` for a file that is damaged."""
    file = path()
    try:
        text = file.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from error
    try:
        document = json.loads(text)
        known = {str(name): Context(**values) for name, values in document["contexts"].items()}
        return Contexts(str(document.get("current", "")), known)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file} is damaged: {error}; repair or delete it") from error


def save(contexts: Contexts) -> None:
    """Write the contexts; only the user may read the file, as it has secrets. Raises `ConfigError`."""
    file = path()
    document = {"current": contexts.current, "contexts": {name: asdict(each) for name, each in contexts.known.items()}}
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = file.with_name(f"{file.name}.{os.getpid()}")
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
            json.dump(document, out, indent=2)
            out.write("\n")
        fresh.replace(file)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from error
