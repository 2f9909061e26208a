"""The engines that a remote log may lie in."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters import S3, Cluster, cluster, s3
from lapwing.log.remote.engines import Engine, open_engine

__all__ = ["cluster", "s3"]

_numbers = itertools.count()


@pytest.fixture(params=["folder", "s3", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty remote log, on each engine in turn."""
    number = next(_numbers)
    if request.param == "s3":
        store: S3 = request.getfixturevalue("s3")
        store.make_bucket(f"bucket{number}")
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        return f"s3://bucket{number}/node/7"
    if request.param == "postgresql":
        database: Cluster = request.getfixturevalue("cluster")
        return f"postgresql://lapwing@/postgres?host={database.folder}&table=remote{number}"
    (tmp_path / "remote").mkdir()
    return f"file://{tmp_path}/remote"


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    """The engine of that URL."""
    engine = open_engine(url)
    engine.create("claims/0", b"")  # every log begins with one
    yield engine
    engine.close()
