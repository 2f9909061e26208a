"""Failures, counted apart from deliveries."""

from hypothesis import given
from hypothesis import strategies as st

from lapwing.broker.failures.dead_letters import ATTEMPTS, REASONS, REJECTED
from lapwing.broker.failures.failures import Failure, Failures


def test_failures_are_counted_from_the_first_on():
    failures = Failures()
    assert failures.get(7) == Failure()
    failures.add(7, lost=False, now=100)

    assert failures.add(7, lost=False, now=200) == Failure(2, 100, 0)
    assert list(failures.records) == [7]


def test_only_lost_connections_are_told_apart():
    failures = Failures()
    failures.add(1, lost=True, now=1)
    assert failures.add(1, lost=True, now=2).lost_only
    assert not failures.add(1, lost=False, now=3).lost_only
    assert not failures.add(1, lost=True, now=4).lost_only

    failures.add(2, lost=False, now=1)
    assert not failures.add(2, lost=True, now=2).lost_only


def test_the_last_error_is_kept_and_the_oldest_make_room():
    failures = Failures()
    failures.add(1, lost=False, now=1, error="first")
    failures.add(1, lost=True, now=2)
    assert failures.error(1) == "first"
    failures.add(1, lost=False, now=3, error="second")
    assert failures.error(1) == "second"
    for sequence in range(2, 5000):
        failures.add(sequence, lost=False, now=1, error="x" * 4096)

    assert failures.error(1) == ""
    assert failures.error(4999) == "x" * 4096
    assert sum(len(failures.error(each)) for each in range(5000)) <= 4 << 20


def test_a_message_is_doomed_and_may_live_again():
    failures = Failures()
    failures.add(1, lost=True, now=1, error="why")
    failures.try_alone(1)
    record = failures.doom(1, ATTEMPTS)
    assert (record.doom, record.only_alone, record.failures, record.deaths) == (ATTEMPTS, True, 1, 0)
    assert failures.doom(2, REJECTED, "no").doom == REJECTED
    assert failures.doomed() == [1, 2]
    assert failures.error(2) == "no"
    failures.revive(1, record.deaths + 1)

    assert failures.get(1) == Failure(0, 0, failures.get(1).flags)
    assert (failures.get(1).doom, failures.get(1).deaths, failures.error(1)) == ("", 1, "")
    assert failures.add(1, lost=True, now=9) == Failure(1, 9, failures.get(1).flags)
    assert failures.get(1).lost_only
    assert failures.get(1).deaths == 1


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "lost", "alone", "revive", "drop", "below", "clear", "save", *REASONS]),
        st.integers(0, 5),
    )
)


@given(steps)
def test_what_the_journal_was_told_amounts_to_what_is_there(history):
    failures, saved = Failures(), {}

    def save() -> None:
        added, removed = failures.changes()
        for sequence in removed:
            saved.pop(sequence, None)
        saved.update(added)

    for verb, sequence in history:
        match verb:
            case "add" | "lost":
                failures.add(sequence, lost=verb == "lost", now=5)
            case "alone":
                failures.try_alone(sequence)
            case "revive":
                failures.revive(sequence, 2)
            case "drop":
                failures.drop([sequence])
            case "below":
                failures.drop_below(sequence)
            case "clear":
                failures.clear()
            case "save":
                save()
            case _:
                failures.doom(sequence, verb)
    save()
    assert saved == {each: tuple(failures.get(each)) for each in failures.records}

    again = Failures()
    again.restore(saved, [0, 1, 2])
    assert again.records == {each: failure for each, failure in failures.records.items() if each < 3}
    assert again.changes() == ([], [each for each in saved if each >= 3])
