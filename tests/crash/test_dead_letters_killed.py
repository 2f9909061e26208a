"""Messages that fail, become dead letters and are redriven, with kills at any moment: each is finished in the end."""

import os
import sys
from pathlib import Path
from random import Random

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "broker"))

from test_redrive import DEAD, run, start

from failing import configure, fail, reject
from lapwing.errors import SettingRefused
from play import MINUTE, SECOND, Client, Stage

LIVES = 4 * int(os.environ.get("LAPWING_CRASH_ROUNDS", "25"))


class Life:
    """One random history of a channel with dead letters."""

    def __init__(self, path: Path, seed: int) -> None:
        self.chance = Random(seed)
        self.stage = Stage(path, max_bytes_per_file=self.chance.choice([300, 3000, 10**6]))
        self.stage.consumer(ready=0).leave()
        configure(self.stage, max_attempts=self.chance.choice([1, 2]))
        self.stage.checkpoint()
        self.stage.broker.keeper.save_catalog()
        self.consumer: Client | None = None
        self.published: set[bytes] = set()
        self.finished: set[bytes] = set()

    def publish(self) -> None:
        bodies = [b"%d" % (len(self.published) + number) for number in range(self.chance.randrange(1, 4))]
        self.stage.client().publish(*bodies)
        self.published.update(bodies)

    def consume(self, *, fails: float = 0.5) -> None:
        if self.consumer is None:
            self.consumer = self.stage.consumer()
        for sequence, _, body in self.consumer.take()[0]:
            kind = self.chance.random()
            if kind > fails:
                self.consumer.finish(sequence)
                self.finished.add(body)
            elif kind < 0.4 * fails:
                reject(self.consumer, sequence)
            elif kind < 0.8 * fails:
                fail(self.consumer, sequence)  # the others are left to their timeout

    def checkpoint(self) -> None:
        self.stage.pass_time(self.chance.choice([1, SECOND]))
        self.stage.checkpoint(trim=self.chance.random() < 0.5)

    def kill(self) -> None:
        self.stage.kill()
        self.consumer = None

    def redrive(self) -> None:
        if DEAD in self.stage.broker.topics:
            try:
                start(self.stage)
            except SettingRefused:
                assert DEAD in self.stage.broker.redrives.active
            if self.chance.random() < 0.7:
                run(self.stage)

    def leave(self) -> None:
        if self.consumer is not None and self.chance.random() < 0.3:
            self.consumer.leave()
            self.consumer = None
        self.stage.pass_time(self.chance.choice([1, 2 * MINUTE]))

    def live(self) -> None:
        kinds = [*2 * [self.publish, self.consume], self.checkpoint, self.kill, self.redrive, self.leave]
        for _ in range(self.chance.randrange(5, 40)):
            self.chance.choice(kinds)()

    def end(self) -> set[bytes]:
        """Finish everything; return what does not come."""
        for _ in range(100):
            self.stage.pass_time(2 * MINUTE)
            self.redrive()
            self.stage.pass_time(SECOND)
            self.consume(fails=0.0)
            if self.published <= self.finished:
                break
        self.stage.broker.storage.close()
        return self.published - self.finished


@pytest.mark.parametrize("seed", range(LIVES))
def test_no_message_is_lost_on_the_way_to_a_dead_letter_topic_and_back(tmp_path: Path, seed: int) -> None:
    life = Life(tmp_path, seed)
    life.live()

    assert life.end() == set()
