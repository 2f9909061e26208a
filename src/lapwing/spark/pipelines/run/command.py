"""The arguments of `lapwing pipeline run`: turned into checked pipelines, and kept so that `resume` can repeat them."""

import logging
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from lapwing.errors import ConfigError
from lapwing.spark.pipelines.run.home import PipelineHome
from lapwing.spark.pipelines.run.runner import PipelineRun, RunRequest, start_session
from lapwing.spark.pipelines.settings import spec as specs
from lapwing.spark.pipelines.settings.kind_settings import ReplaySettings
from lapwing.spark.pipelines.settings.spec import PipelineSpec, SessionNeeded
from lapwing.spark.pipelines.settings.values import place

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunCommand:
    """One command line; `extra` holds the settings that have a flag of their own."""

    names: list[str]
    settings: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    once: bool = False
    checkpoint: str = ""
    master: str = "local[*]"
    conf: dict[str, str] = field(default_factory=dict)
    only: str = ""  # the one pipeline to run of those that are named

    @cached_property
    def specs(self) -> list[PipelineSpec]:
        """The pipelines, loaded and checked once, as a Python file may do more than define them; raises `ConfigError`.

        Spark is started if a file cannot be read without it.
        """
        try:
            found = self._load(self.names)
        except SessionNeeded:
            logger.info("starting Spark, which this file needs to be read")
            others = self._load([name for name in self.names if not name.endswith(".py")])
            start_session(self.master, self.conf, [jar for x in others for jar in getattr(x.settings, "jars", ())])
            found = self._load(self.names)
        if not self.only and (left := specs.unused(self.settings, found)):
            raise ConfigError(f"--set {left[0]}: {', '.join(spec.name for spec in found)} {specs.hint(left[0], found)}")
        if "out" in self.extra and len(found) > 1:
            raise ConfigError("--out is for one pipeline; use --set NAME.out=DIR")
        return [spec for spec in found if self.only in ("", spec.name)]

    def _load(self, names: list[str]) -> list[PipelineSpec]:
        return [spec for name in names for spec in specs.load(name, self.settings, self.extra)]

    @property
    def is_preview(self) -> bool:
        """Whether nothing shall be written: a dry run of anything but a replay, which has its own."""
        return bool(self.extra.get("dry_run")) and not any(isinstance(x.settings, ReplaySettings) for x in self.specs)

    @property
    def is_bounded(self) -> bool:
        """Whether the run ends by itself, so that a bar can show how far it is."""
        return self.once or bool(self.extra.get("dry_run")) or all(
            isinstance(each.settings, ReplaySettings) for each in self.specs
        )  # fmt: skip

    def unchecked(self, data: Path) -> PipelineRun:
        """Return the pipelines, for a preview."""
        return PipelineRun(self.specs, RunRequest(data, self.once, self.checkpoint, self.master, self.conf))

    def running(self, data: Path) -> PipelineRun:
        """Return the pipelines, ready to be started; each keeps this command for `resume`."""
        found = self.specs
        running = PipelineRun(found, RunRequest(data, self.once, self.checkpoint, self.master, self.conf))
        running.check()
        for spec in found:
            kept = replace(
                self,
                names=[(spec.origin and str(Path(spec.origin).absolute())) or spec.settings.kind],
                extra={key: value for key, value in self._placed().items() if key != "accept_loss"},  # for one run
                checkpoint=self.checkpoint and place(self.checkpoint),
            )
            PipelineHome(data / spec.name).remember({**asdict(kept), "only": spec.name})
        return running

    def _placed(self) -> dict[str, Any]:
        """Return `extra` as it means the same in every directory."""
        out = self.extra.get("out")
        return {**self.extra, "out": place(out)} if out else self.extra


def remembered(data: Path, name: str, *, once: bool = False, accept_loss: bool = False) -> RunCommand:
    """Return the last command of a pipeline; with `accept_loss` it runs although messages are gone."""
    home = PipelineHome(data / name)
    if not home.path.is_dir():
        raise ConfigError(f"no pipeline {name} has run with --data {data}")
    command = RunCommand(**home.remembered())
    extra = {**command.extra, "accept_loss": True} if accept_loss else command.extra
    return replace(command, extra=extra, once=once)
