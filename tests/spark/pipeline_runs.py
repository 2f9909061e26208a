"""Pipelines run inside the tests' own Spark session."""

import threading
from contextlib import contextmanager
from pathlib import Path

from daemons import until
from lapwing.spark.pipelines.run.runner import PipelineRun, RunRequest
from lapwing.spark.pipelines.settings import spec


class Runs:
    """Runs pipelines against a broker, with a data directory of their own."""

    def __init__(self, spark, broker, path: Path) -> None:
        self.spark = spark
        self.broker = broker
        self.data = path / "pipelines"

    def made(self, what, *settings, once=True, **wanted) -> PipelineRun:
        specs = spec.load(str(what), settings, {"nsqd": [self.broker.address]})
        assert not spec.unused(settings, specs)
        running = PipelineRun(specs, RunRequest(self.data, once, **wanted))
        running.check()
        return running

    def once(self, what, *settings, **wanted):
        """Do what there is to do; the progress at the end."""
        running = self.made(what, *settings, **wanted)
        good = running.run(self.spark, lambda progress: None)
        progress = running.jobs[0].progress
        assert good, progress.error
        return progress

    def failing(self, what, *settings) -> str:
        """The same, of a run that fails; why."""
        running = self.made(what, *settings)
        assert not running.run(self.spark, lambda progress: None)
        return running.jobs[0].progress.error

    @contextmanager
    def up(self, what, *settings):
        """A pipeline that stays up for the length of a `with` block."""
        running = self.made(what, *settings, once=False)
        thread = threading.Thread(target=running.run, args=(self.spark, lambda progress: None))
        thread.start()
        try:
            until(lambda: running.jobs or not thread.is_alive(), seconds=60)
            yield running
        finally:
            running.ask_to_stop()
            thread.join(60)
            assert not thread.is_alive()
