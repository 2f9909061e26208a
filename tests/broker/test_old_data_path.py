"""A data path that an earlier version wrote opens as it did then: `tests/vectors/data-path-1`, of a killed process.

Its format: a journal without a version, `emptied` in the catalog, ledgers and a catalog without checksums, index
records before frames. Its clock stood at 1120 s. It is never written again: a new format gets a data path of its own.
"""

import shutil
from pathlib import Path

import pytest

from lapwing import kernel
from lapwing.broker.operations.staging import Staging
from lapwing.log.staged import StagedFiles
from play import MINUTE, SECOND, Client, Stage

OLD = Path(__file__).parent.parent / "vectors" / "data-path-1"


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """A broker on a copy of the data path, at the time at which its process was killed."""
    shutil.copytree(OLD, tmp_path / "data")
    return Stage(tmp_path / "data", now=1120 * SECOND, max_bytes_per_file=600, max_req_timeout=60 * MINUTE)


def taken(client: Client) -> dict[int, int]:
    """The messages that have arrived, with their attempts."""
    return {sequence: attempts for sequence, attempts, _ in client.take()[0]}


def test_every_topic_and_channel_is_there(stage: Stage) -> None:
    topics = stage.broker.topics

    assert {name: sorted(topic.channels) for name, topic in topics.items()} == {
        "orders": ["audit", "billing"], "Halted": ["slow"], "alone": [], "lake": [], "volatile": ["c"],
    }  # fmt: skip
    assert [name for name, topic in topics.items() if topic.paused] == ["Halted"]
    assert topics["Halted"].channels["slow"].paused
    assert not stage.broker.unopened


def test_messages_in_flight_requeued_and_set_aside_come_again_with_their_attempts(stage: Stage) -> None:
    billing = stage.consumer("billing", topic="orders")

    attempts = taken(billing)
    assert attempts == {
        **dict.fromkeys([0, 3, 5, 6, 7, 8, 9, 10, 11], 2),
        **dict.fromkeys([*range(12, 36), 37, 38], 1),
    }  # fmt: skip


def test_deferred_messages_come_at_their_time(stage: Stage) -> None:
    billing = stage.consumer("billing", topic="orders")
    billing.take()
    billing.finish(*sorted(billing.holder.in_flight))
    stage.pass_time(2200 * SECOND - stage.now - 1)
    assert taken(billing) == {}
    stage.pass_time(1)
    assert taken(billing) == {36: 1}
    billing.finish(36)
    stage.pass_time(600 * SECOND)

    assert taken(billing) == {2: 2}


def test_a_cursor_that_was_moved_stays_there(stage: Stage) -> None:
    assert list(taken(stage.consumer("audit", topic="orders"))) == [*range(30, 36), 37, 38]


def test_headers_are_kept(stage: Stage) -> None:
    log = stage.broker.existing("orders").log

    assert {extra.sequence: extra.headers for extra in log.extras(0, log.end) if extra.headers} == {
        38: {"kind": "test", "Ünicode": "ß"}
    }


def test_what_was_emptied_stays_gone_and_what_was_paused_stays_paused(stage: Stage) -> None:
    slow = stage.consumer("slow", topic="Halted")
    assert slow.received() == []
    stage.broker.pause_channel("Halted", "slow", False)
    stage.commit()
    assert slow.received() == [0, 1, 2]
    stage.broker.pause_topic("Halted", False, now=stage.now)
    stage.commit()

    assert slow.received() == [9]


def test_what_was_emptied_stays_gone_after_another_restart(stage: Stage) -> None:
    stage.restart()
    stage.kill()
    stage.broker.pause_channel("Halted", "slow", False)
    stage.broker.pause_topic("Halted", False, now=stage.now)

    assert stage.consumer("slow", topic="Halted").received() == [0, 1, 2, 9]


def test_sequences_that_memory_may_have_given_out_are_left_out(stage: Stage) -> None:
    log = stage.broker.existing("volatile").log

    assert (log.lost, log.end) == (range(7, 12), 12)


def test_an_interrupted_batch_is_carried_on_and_the_next_one_is_still_staged(stage: Stage) -> None:
    staging = Staging(stage.broker, StagedFiles(str(stage.path), sync=False))
    staging.recover(now=lambda: stage.now)
    log = stage.broker.existing("lake").log
    found = [message[3] for _, _, frames in log.blocks(0, log.end, 1 << 20)
             for message in kernel.decode_messages(frames, 0, len(frames))[0]]  # fmt: skip

    assert found == [b"b0 one", b"b0 two", b"b1 one", b"b1 two", b"b1 three"]
    assert staging.published("spark") == 1
    assert [batch for batch, _ in staging.files.batches("spark")] == [2]


def test_nothing_is_reported_as_damaged(stage: Stage) -> None:
    notes = [note for topic in stage.broker.topics_in_use() for note in topic.store.news()]

    assert [line for line in [*stage.reports, *notes] if "t-volatile" not in line] == []
