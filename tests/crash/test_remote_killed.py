"""Processes that own a remote log are killed, or stand still while others take over: nothing acknowledged is lost."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from remote_writer import FENCED, Contents

from clusters import S3, Cluster, cluster, s3
from daemons import until
from lapwing.log.remote.engines import open_engine
from lapwing.log.remote.remote_log import RemoteLog

__all__ = ["cluster", "s3"]

ROUNDS = min(int(os.environ.get("LAPWING_CRASH_ROUNDS", "4")), 200)
WRITER = Path(__file__).with_name("remote_writer.py")


class Writer:
    """A process that appends; its lines are in a file."""

    def __init__(self, url: str, name: str, folder: Path) -> None:
        self.name = name
        self.lines = folder / f"{name}.lines"
        self.errors = folder / f"{name}.errors"
        with self.lines.open("wb") as out, self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(WRITER), url, name], stdout=out, stderr=errors
            )

    def acknowledged(self) -> dict[int, bytes]:
        """The messages that it acknowledged, by their place."""
        rows = [line.split(b" ", 1) for line in self.lines.read_bytes().splitlines()]
        return {int(place): body for place, body in rows}

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["folder", "s3", "postgresql"])
def test_killed_and_standing_still(
    request: pytest.FixtureRequest, tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "remote").mkdir()
    url = f"file://{tmp_path}/remote"
    if engine == "s3":
        store: S3 = request.getfixturevalue("s3")
        store.make_bucket("killed")
        url = "s3://killed/x"
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
    elif engine == "postgresql":
        database: Cluster = request.getfixturevalue("cluster")
        url = f"postgresql://lapwing@/postgres?host={database.folder}&table=killed"
    chance = random.Random(ROUNDS)
    writers: list[Writer] = []
    standing: Writer | None = None
    try:
        for number in range(ROUNDS + 1):
            writer = Writer(url, f"w{number}", tmp_path)
            writers.append(writer)
            until(lambda: len(writer.acknowledged()) > chance.randrange(1, 60), what=writer.name)  # noqa: B023
            if standing is not None:  # it continues in the middle of whatever it was doing
                standing.send(signal.SIGCONT)
                assert standing.process.wait(60) == FENCED, standing.errors.read_text()
                assert f"taken over by {writer.name}" in standing.errors.read_text()
                standing = None
            time.sleep(chance.random() / 50)
            if chance.random() < 0.5:
                writer.send(signal.SIGKILL)
                writer.process.wait(60)
            else:
                writer.send(signal.SIGSTOP)
                standing = writer
    finally:
        for writer in writers:
            if writer.process.poll() is None:
                writer.process.kill()
                writer.process.wait()
    acknowledged = [item for writer in writers for item in writer.acknowledged().items()]

    place = open_engine(url)
    contents = Contents()
    contents.load(RemoteLog(place, owner="reader"))
    place.close()
    assert [item for item in acknowledged if contents.bodies[item[0]] != item[1]] == []
    assert len(dict(acknowledged)) == len(acknowledged) > ROUNDS
