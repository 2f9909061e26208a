"""Claim, append, fence, checkpoint: on a folder, S3 and PostgreSQL."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from lapwing.errors import Fenced, NotReleased, RemoteDamaged, RemoteFailed
from lapwing.log.remote.engines import Engine, open_engine
from lapwing.log.remote.image import Image, loaded
from lapwing.log.remote.record import FileWritten, decode, encode
from lapwing.log.remote.remote_log import RemoteLog, record_name

from .stage import BEGUN, LOG_ID, NODE, FaultyEngine, append, messages, owned


def test_what_was_appended_is_read_in_order(engine: Engine) -> None:
    log = owned(engine)
    append(log, BEGUN, messages(0, [b"a", b"b"]))
    append(log, messages(2, [b"c"]))

    found = list(RemoteLog(engine, owner="reader").read(1))

    assert [(each.index, each.kind, each.epoch) for each in found] == [(1, "claim", 1), (2, "data", 1), (3, "data", 1)]
    assert found[1].parts == (BEGUN, messages(0, [b"a", b"b"]))
    image = loaded(log)
    assert (image.topics["orders"].end, image.topics["orders"].messages) == (3, 3)


def test_a_log_that_was_not_released_is_claimed_only_by_a_take_over(engine: Engine) -> None:
    owned(engine, "first at work")

    with pytest.raises(NotReleased, match=r"first at work has it since 1970-01-01T00:00:00Z and has not released it"):
        owned(engine, "second")
    assert owned(engine, "second", take_over=True).epoch == 2


def test_a_log_that_was_released_is_claimed_by_anyone(engine: Engine) -> None:
    log = owned(engine)
    log.release(now=3)

    assert owned(engine, "second").epoch == 2
    with pytest.raises(ValueError):
        append(log, messages(0, [b"x"]))


def test_the_node_of_a_log_stays_what_it_was(engine: Engine) -> None:
    owned(engine).release(now=3)

    assert RemoteLog(engine, owner="b").claim(12, now=4).node == NODE


def test_a_former_owner_is_fenced_by_its_next_append_and_names_the_new_one(engine: Engine) -> None:
    former = owned(engine, "a")
    append(former, BEGUN)
    successor = owned(engine, "b at work", take_over=True)

    with pytest.raises(Fenced, match=r"taken over by b at work \(epoch 2\)"):
        append(former, messages(0, [b"lost"]))
    append(successor, messages(0, [b"kept"]))
    assert [part for each in successor.read(1) for part in each.parts] == [BEGUN, messages(0, [b"kept"])]


def test_a_former_owner_is_fenced_however_much_was_deleted_since(engine: Engine) -> None:
    former = owned(engine, "a")
    append(former, BEGUN)
    successor = owned(engine, "b", take_over=True)
    for number in range(5):
        append(successor, messages(number, [b"x"]))
    successor.make_checkpoint([BEGUN, *(messages(number, [b"x"]) for number in range(5))], now=5)

    with pytest.raises(Fenced):
        append(former, messages(0, [b"lost"]))
    names = [name for name, _ in engine.find("records")]
    assert names == [record_name(index) for index in (1, 3, 8, 9)]  # claims, and what the checkpoint begins with


class Overtaken(FaultyEngine):
    """An engine in which the owner of the log appends a record each time that another is about to, for some time."""

    def __init__(self, owner: RemoteLog) -> None:
        super().__init__(owner.engine)
        self.owner = owner
        self.times = 9

    def create(self, name: str, *data: bytes) -> bool:
        if name.startswith("records/") and self.times:
            self.times -= 1
            append(self.owner, messages(self.times, [b"busy"]))
        return super().create(name, *data)


def test_a_log_whose_owner_appends_all_the_time_can_be_taken_over(engine: Engine) -> None:
    owner = owned(engine, "busy")
    append(owner, BEGUN)

    successor = owned(Overtaken(owner), "successor", take_over=True)

    assert (successor.epoch, successor.index) == (2, 12)
    with pytest.raises(Fenced, match="successor"):
        append(owner, messages(99, [b"late"]))
    claims = [name for name, _ in engine.find("claims")]
    assert claims[:3] == ["claims/0", f"claims/{1:020d}", f"claims/{12:020d}"]  # no record of the owner is kept


def test_of_eight_who_claim_at_once_one_owns_the_log(url: str) -> None:
    logs = [RemoteLog(open_engine(url), owner=f"number {number}") for number in range(8)]

    def claim(log: RemoteLog) -> bool:
        try:
            log.claim(NODE, now=1)
        except (NotReleased, Fenced):
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        claimed = list(pool.map(claim, logs))

    assert claimed.count(True) == 1
    append(logs[claimed.index(True)], BEGUN)
    for log in logs:
        log.engine.close()


def test_of_eight_who_take_over_at_once_the_last_one_owns_the_log(url: str, engine: Engine) -> None:
    owned(engine, "former")
    logs = [RemoteLog(open_engine(url), owner=f"number {number}") for number in range(8)]

    def claim(log: RemoteLog) -> None:
        try:
            log.claim(NODE, now=1, take_over=True)
            append(log, FileWritten(log.owner, b""))
        except Fenced:
            log.epoch = 0

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(claim, logs))

    owners = []
    for log in logs:
        try:
            append(log, FileWritten("again", b""))
            owners.append(log.owner)
        except (Fenced, ValueError):
            log.epoch = 0
        log.engine.close()
    assert len(owners) == 1


@pytest.mark.parametrize("fate", ["lost", "unanswered", "late"])
def test_an_append_that_was_not_answered_is_there_once_after_it_was_repeated(engine: Engine, fate: str) -> None:
    faulty = FaultyEngine(engine)
    log = owned(faulty)
    record = log.record([BEGUN, messages(0, [b"a"])], now=2)
    faulty.plan = [fate]

    with pytest.raises(RemoteFailed):
        log.append(record)
    with pytest.raises(ValueError):  # another one must wait
        append(log, FileWritten("x", b""))
    log.append(record)
    faulty.deliver()
    append(log, messages(1, [b"b"]))

    assert [part for each in log.read(1) for part in each.parts] == [BEGUN, messages(0, [b"a"]), messages(1, [b"b"])]


def test_an_append_that_was_not_answered_and_lost_to_a_take_over_is_fenced(engine: Engine) -> None:
    faulty = FaultyEngine(engine)
    former = owned(faulty)
    record = former.record([BEGUN], now=2)
    faulty.plan = ["late"]
    with pytest.raises(RemoteFailed):
        former.append(record)
    successor = owned(engine, "b", take_over=True)
    faulty.deliver()

    with pytest.raises(Fenced):
        former.append(record)
    assert [each.owner for each in successor.read(1)] == ["a", "b"]


def test_an_append_that_was_not_answered_and_kept_by_a_take_over_is_no_loss(engine: Engine) -> None:
    faulty = FaultyEngine(engine)
    former = owned(faulty)
    record = former.record([BEGUN, messages(0, [b"a"])], now=2)
    faulty.plan = ["unanswered"]
    with pytest.raises(RemoteFailed):
        former.append(record)
    successor = owned(engine, "b", take_over=True)

    former.append(record)  # it is there, before the claim
    with pytest.raises(Fenced):
        append(former, messages(1, [b"b"]))
    assert loaded(successor).topics["orders"].end == 1


@pytest.mark.parametrize("fate", ["lost", "unanswered", "late"])
@pytest.mark.parametrize("step", range(7))
def test_a_claim_that_was_not_answered_may_be_repeated(engine: Engine, fate: str, step: int) -> None:
    owned(engine, "former").release(now=2)
    faulty = FaultyEngine(engine)
    log = RemoteLog(faulty, owner="a")
    faulty.plan = [*[""] * step, fate]

    for _ in range(2):
        try:
            log.claim(NODE, now=3)
            break
        except RemoteFailed:
            faulty.deliver()

    append(log, BEGUN)
    assert [each.owner for each in log.read(1)][-2:] == ["a", "a"]


def advance(owner: RemoteLog) -> None:
    append(owner, BEGUN)
    owner.make_checkpoint([BEGUN], now=5)
    append(owner, messages(0, [b"a"]))
    owner.make_checkpoint([BEGUN, messages(0, [b"a"])], now=6)


def test_a_slow_claimer_does_not_take_over_by_a_record_that_was_deleted(engine: Engine) -> None:
    owner = owned(engine, "owner")
    append(owner, BEGUN)
    slow = FaultyEngine(engine)
    stale = RemoteLog(slow, owner="slow")
    slow.plan = ["", "", "", lambda: advance(owner)]  # between its look at the last record and its claim

    stale.claim(NODE, now=9, take_over=True)  # a second look shows it where the end is

    with pytest.raises(Fenced):
        append(owner, messages(1, [b"b"]))
    append(stale, messages(1, [b"c"]))
    assert loaded(stale).topics["orders"].end == 2


def test_a_store_that_writes_over_objects_is_refused(engine: Engine) -> None:
    class Overwriting(FaultyEngine):
        def create(self, name: str, *data: bytes) -> bool:
            if not self.engine.create(name, *data):
                self.engine.delete([name])
                self.engine.create(name, *data)
            return True

    with pytest.raises(RemoteFailed, match="writes over objects though it was asked not to"):
        owned(Overwriting(engine))


def test_a_store_that_answers_conflict_without_an_object_is_asked_again(engine: Engine) -> None:
    class Conflicting(FaultyEngine):
        conflicts = 0

        def create(self, name: str, *data: bytes) -> bool:
            self.conflicts += 1
            return self.conflicts % 3 == 0 and self.engine.create(name, *data)

    log = owned(Conflicting(engine))
    append(log, BEGUN)

    assert [each.index for each in log.read(1)] == [1, 2]


# --- checkpoints -----------------------------------------------------------------------------------------------


def test_a_checkpoint_takes_the_place_of_the_records_up_to_it(engine: Engine) -> None:
    log = owned(engine)
    append(log, BEGUN, messages(0, [b"a", b"b"]))
    stored = log.store([messages(0, [b"a", b"b"])], now=3)
    log.make_checkpoint([BEGUN, stored, FileWritten("nsqd.dat", b"{}")], now=4)
    append(log, messages(2, [b"c"]))

    image = loaded(RemoteLog(engine, owner="reader"))

    assert (image.topics["orders"].end, image.stored["orders"], image.files) == (3, [stored], {"nsqd.dat"})
    assert [name for name, _ in engine.find("records")] == [record_name(index) for index in (1, 2, 3, 4)]


def test_a_checkpoint_deletes_what_the_one_before_had_and_it_has_not(engine: Engine) -> None:
    log = owned(engine)
    append(log, BEGUN, messages(0, [b"a"]))
    first = log.store([messages(0, [b"a"])], now=3)
    log.make_checkpoint([BEGUN, first], now=4)
    append(log, messages(1, [b"b"]))
    second = log.store([messages(0, [b"a"]), messages(1, [b"b"])], now=5)
    log.make_checkpoint([BEGUN, second], now=6)

    assert [name for name, _ in engine.find("slices")] == [second.name]
    assert len(list(engine.find("checkpoints"))) == 1
    assert loaded(log).topics["orders"].end == 2


@pytest.mark.parametrize("step", range(12))
@pytest.mark.parametrize("fate", ["lost", "unanswered"])
def test_a_checkpoint_that_was_interrupted_anywhere_loses_nothing(engine: Engine, step: int, fate: str) -> None:
    faulty = FaultyEngine(engine)
    log = owned(faulty)
    append(log, BEGUN, messages(0, [b"a"]))
    log.make_checkpoint([BEGUN, log.store([messages(0, [b"a"])], now=3)], now=3)
    append(log, messages(1, [b"b"]))
    faulty.plan = [*[""] * step, fate]

    try:
        stored = log.store([messages(0, [b"a"]), messages(1, [b"b"])], now=4)
        log.make_checkpoint([BEGUN, stored], now=4)
    except RemoteFailed:
        faulty.plan = []
    successor = owned(engine, "b", take_over=True)
    append(successor, messages(2, [b"c"]))

    assert loaded(successor).topics["orders"].end == 3


@pytest.mark.parametrize("step", range(14))
def test_a_former_owner_that_stood_still_amid_a_checkpoint_deletes_nothing_of_its_successor(
    engine: Engine, step: int
) -> None:
    faulty = FaultyEngine(engine)
    former = owned(faulty)
    append(former, BEGUN, messages(0, [b"a"]))
    former.make_checkpoint([BEGUN, former.store([messages(0, [b"a"])], now=3)], now=3)
    append(former, messages(1, [b"b"]))

    def take_over() -> None:
        successor = owned(engine, "b", take_over=True)
        image = loaded(successor)
        append(successor, messages(image.topics["orders"].end, [b"c"]))
        rest = messages(2, [b"c"])
        kept = image.stored["orders"]
        rest = [messages(sequence, [body]) for sequence, body in ((1, b"b"), (2, b"c")) if sequence >= kept[-1].end]
        successor.make_checkpoint([BEGUN, *kept, successor.store(rest, now=5)], now=5)

    faulty.plan = [*[""] * step, take_over]
    try:
        stored = former.store([messages(0, [b"a"]), messages(1, [b"b"])], now=4)
        former.make_checkpoint([BEGUN, stored], now=4)
    except Fenced:
        former.epoch = 0
    if faulty.plan:
        take_over()

    assert loaded(RemoteLog(engine, owner="reader")).topics["orders"].end == 3


def test_a_checkpoint_that_arrives_late_does_not_pass_for_the_one_that_was_made_instead(engine: Engine) -> None:
    faulty = FaultyEngine(engine)
    log = owned(faulty)
    append(log, BEGUN, messages(0, [b"a"]))
    first = log.store([messages(0, [b"a"])], now=3)
    faulty.plan = ["late"]
    with pytest.raises(RemoteFailed):
        log.make_checkpoint([BEGUN, first], now=4)
    second = log.store([messages(0, [b"a"])], now=5)
    log.make_checkpoint([BEGUN, second], now=6)
    faulty.deliver()

    assert loaded(log).stored["orders"] == [second]


def test_a_reader_begins_again_when_a_checkpoint_is_made_while_it_reads(engine: Engine) -> None:
    log = owned(engine)
    append(log, BEGUN, messages(0, [b"a"]))
    append(log, messages(1, [b"b"]))
    slow = FaultyEngine(engine)
    slow.plan = ["", "", lambda: log.make_checkpoint([BEGUN, messages(0, [b"a"]), messages(1, [b"b"])], now=4)]

    assert loaded(RemoteLog(slow, owner="reader")).topics["orders"].end == 2
    assert slow.plan == []


# --- damage ----------------------------------------------------------------------------------------------------


def test_a_record_that_is_missing_is_found(engine: Engine) -> None:
    log = owned(engine)
    append(log, BEGUN)
    append(log, messages(0, [b"a"]))
    engine.delete([record_name(2)])

    with pytest.raises(RemoteDamaged, match=r"records/0+2 is missing, and there is records/0+3"):
        loaded(log)


def test_a_record_that_was_changed_or_exchanged_is_found(engine: Engine) -> None:
    log = owned(engine)
    append(log, BEGUN)
    append(log, messages(0, [b"a"]))
    data = engine.read(record_name(2))
    assert data is not None
    record = decode(data, "x")

    for other in (data[:-1], data[:-1] + b"!", b"".join(encode(log.record([BEGUN], now=1))), b""):
        engine.delete([record_name(2)])
        engine.create(record_name(2), other)
        with pytest.raises(RemoteDamaged):
            loaded(log)
    assert record.parts == (BEGUN,)


@pytest.mark.parametrize(
    "part",
    [
        messages(1, [b"a"]),
        messages(0, [b"a"], log_id="another"),
        messages(0, [b"a"], topic="unknown"),
        FileWritten("../outside", b""),
        FileWritten("/outside", b""),
        FileWritten("topics/t-orders/journal", b""),
    ],
)
def test_parts_that_do_not_fit_are_refused(engine: Engine, part: FileWritten) -> None:
    log = owned(engine)
    append(log, BEGUN)
    append(log, part)

    with pytest.raises(RemoteDamaged):
        Image().load(log)


def test_messages_whose_ids_are_not_their_sequences_are_refused(engine: Engine) -> None:
    log = owned(engine)
    other = messages(5, [b"a", b"b"])
    append(log, BEGUN, type(other)("orders", LOG_ID, 0, 2, other.frames, b""))

    with pytest.raises(RemoteDamaged, match="a message has the id"):
        Image().load(log)
