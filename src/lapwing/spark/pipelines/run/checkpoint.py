"""Spark's checkpoint of a query, and whether a pipeline that was changed can continue from it."""

import dataclasses
import json
from typing import Any, Final

from lapwing.errors import ConfigError, LapwingError
from lapwing.spark.files import Files
from lapwing.spark.pipelines.settings.kind_settings import PipelineSettings, TransformSettings
from lapwing.spark.pipelines.settings.values import place

_PINS: Final = "lapwing.json"  # beside Spark's own files; Spark leaves it alone


class Checkpoint:
    """The checkpoint directory of one query."""

    def __init__(self, files: Files) -> None:
        self._files = files

    @property
    def root(self) -> str:
        return self._files.root

    @property
    def new(self) -> bool:
        """Whether no query has ever run from here."""
        return not self._numbers("offsets")

    def query(self) -> str:
        """Return the id of the query, which stays the same over restarts."""
        try:
            found = json.loads(self._files.read("metadata"))["id"]
        except (OSError, ValueError, KeyError) as error:
            raise LapwingError(f"{self.root}/metadata: no id of a query: {error}") from error
        return str(found)

    def offsets(self, batch: int) -> dict[str, Any]:
        """Return where the source stands at the end of a batch."""
        lines = self._files.read(f"offsets/{batch}").decode().splitlines()
        for line in lines[2:]:  # the version, what Spark notes of the batch, then a line for each source
            if line.startswith("{"):
                found = json.loads(line)
                if isinstance(found, dict):
                    return {topic: nodes for topic, nodes in found.items() if not topic.startswith("#")}
        raise LapwingError(f"{self.root}/offsets/{batch}: no offsets in it")

    @property
    def unfinished(self) -> bool:
        """Whether the last batch was begun and not finished: it will be done again."""
        begun = self._numbers("offsets")
        return bool(begun) and begun[-1] not in self._numbers("commits")

    @property
    def finished(self) -> int:
        """The last batch that was finished, -1 before the first."""
        return max(self._numbers("commits"), default=-1)

    @property
    def stateful(self) -> bool:
        return bool(self._files.names("state"))

    def _numbers(self, folder: str) -> list[int]:
        return sorted(int(name) for name in self._files.names(folder) if name.isdigit())

    def pins(self) -> dict[str, Any]:
        """Return what was noted when the pipeline ran from here for the first time."""
        try:
            found = json.loads(self._files.read(_PINS))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise LapwingError(f"{self.root}/{_PINS}: not JSON: {error}") from error
        return found if isinstance(found, dict) else {}

    def pin(self, **values: Any) -> None:
        """Note values for later runs, beside those noted before."""
        self._files.write(_PINS, json.dumps({**self.pins(), **values}, indent=2, sort_keys=True).encode())

    def check(self, settings: PipelineSettings) -> None:
        """Raise `ConfigError` when the settings cannot continue from here; note them for the next time."""
        pins = self.pins()
        before = pins.get("settings", {})
        kind = pins.get("kind", settings.kind)
        if kind != settings.kind:
            raise ConfigError(
                f"{self.root} is the checkpoint of a pipeline of kind {kind}, not {settings.kind}; "
                "give this one a name of its own, or another --checkpoint"
            )
        fixed = _fixed(settings, stateful=self.stateful)
        if not self.new:
            for key, why in fixed.items():
                now = _plain(getattr(settings, key))
                if key == "out" and before.get(key):
                    before[key] = place(before[key])  # may have been noted as it was written
                if key in before and before[key] != now:
                    raise ConfigError(
                        f"{key} was {before[key]!r} and is now {now!r}, and {why} ({self.root}). "
                        "Change it back, or start over: another name, another --checkpoint, or delete that directory"
                    )
        self.pin(kind=settings.kind, settings=_without_secrets(settings))

    def move_sink(self, addresses: tuple[str, ...]) -> tuple[str, ...]:
        """Return these brokers, and note that batches are published at them from now on."""
        self.pin(sink=list(addresses))
        return addresses

    def keep_sink(self, addresses: tuple[str, ...]) -> tuple[str, ...]:
        """Return the brokers that batches were published at, and these: one of them may have the last batch."""
        return self.move_sink(tuple(dict.fromkeys((*self.pins().get("sink", ()), *addresses))))


def _fixed(settings: PipelineSettings, *, stateful: bool) -> dict[str, str]:
    fixed = {
        each.name: str(each.metadata["fixed"]) for each in dataclasses.fields(settings) if each.metadata.get("fixed")
    }
    if stateful and isinstance(settings, TransformSettings):
        for key in ("sql", "schema"):
            fixed[key] = "the checkpoint holds state that was made with the old one"
    return fixed


def _without_secrets(settings: PipelineSettings) -> Any:
    """Return the settings as JSON has them, without what nobody else may read."""
    known = dataclasses.asdict(settings)
    for each in dataclasses.fields(settings):
        if each.metadata.get("secret"):
            del known[each.name]
    known["options"] = {key: value for key, value in known["options"].items() if key != "authSecret"}
    return _plain(known)


def _plain(value: Any) -> Any:
    """Return the value as it comes back from JSON."""
    return json.loads(json.dumps(value))
