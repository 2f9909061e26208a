"""Random histories of a remote log, against a list: processes that stand still, engines that answer late or never."""

import contextlib
import itertools
import shutil
import tempfile
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from example_counts import examples
from lapwing import kernel
from lapwing.errors import Fenced, NotReleased, RemoteFailed
from lapwing.log.disk import Disk
from lapwing.log.remote import mirror as mirrors
from lapwing.log.remote import remote_log
from lapwing.log.remote.folder import Folder
from lapwing.log.remote.image import Image
from lapwing.log.remote.mirror import Mirror, write_plan
from lapwing.log.remote.record import Messages, Part, Record, Stored
from lapwing.log.remote.remote_log import CheckpointWriter, RemoteLog
from log.remote.stage import BEGUN, NODE, FaultyEngine, messages

FATES = st.sampled_from(["", "", "", "lost", "unanswered", "late"])
PLANS = st.lists(FATES, max_size=14)


class QuickDisk(Disk):
    """A disk that is not waited for."""

    @staticmethod
    def fsync(fd: int) -> None:
        """Do nothing."""


class Contents(Image):
    """An image that keeps the bodies of messages."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[bytes] = []

    def _add(self, part: Messages) -> None:
        found, _ = kernel.decode_messages(part.frames, 0, len(part.frames))
        self.bodies += [body for _, _, _, body in found]


class Writer:
    """A process that believes to own the log."""

    def __init__(self, log: RemoteLog, engine: FaultyEngine) -> None:
        self.log, self.engine = log, engine
        self.bodies: list[bytes] = []  # what the log holds, as far as it knows
        self.mirror = Mirror()
        self.made: tuple[CheckpointWriter, list[Stored], list[str]] | None = None  # a checkpoint that is announced
        self.first = True  # whether it has made none
        self.begun = False
        self.pending: Record | None = None  # what was not answered
        self.body = b""  # what is in it


class RemoteMachine(RuleBasedStateMachine):
    """`acknowledged` is the model; `sent` is everything that anybody tried to append, by its place."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="lapwing-remote-")
        self.engine = Folder(self.folder, disk=QuickDisk())
        self.writers: list[Writer] = []
        self.networks: list[FaultyEngine] = []
        self.acknowledged: dict[int, bytes] = {}
        self.sent: set[tuple[int, bytes]] = set()
        self.count = 0
        nonces = (f"{number:016x}" for number in itertools.count())  # an example does the same each time
        self.nonces = mock.patch.object(remote_log, "_new_nonce", side_effect=nonces)
        self.nonces.start()

    def teardown(self) -> None:
        self.nonces.stop()
        shutil.rmtree(self.folder)

    # --- what processes do -------------------------------------------------------------------------------------

    def _start(self, take_over: bool, plan: Sequence[Any] = ()) -> Writer | None:
        """Begin a process: claim, again when it is not answered, then take over what there is."""
        engine = FaultyEngine(self.engine)
        self.networks.append(engine)
        log = RemoteLog(engine, owner=f"process {len(self.networks)}")
        engine.plan = list(plan)
        for _ in range(3):
            try:
                log.claim(NODE, now=len(self.networks), take_over=take_over)
                break
            except RemoteFailed:
                continue
            except (NotReleased, Fenced):
                return None
        engine.plan = []
        if not log.epoch:
            return None
        contents = Contents()
        contents.load(log)
        writer = Writer(log, engine)
        writer.bodies, writer.begun = contents.bodies, "orders" in contents.topics
        writer.mirror.load(log)
        self.writers.append(writer)
        return writer

    def _proceed(self, writer: Writer) -> None:
        """Have a process append a message, or repeat what it has not been answered."""
        pending = writer.pending
        if pending is None or (pending.parts and isinstance(pending.parts[-1], Messages)):
            self._append(writer)
        elif pending.kind == "data":
            self._announce(writer, pending)
        else:
            self._release(writer)

    def _append(self, writer: Writer) -> None:
        """Have a process append a message, or what it has not been answered; it ends when it is fenced."""
        if writer.pending is None:
            self.count += 1
            writer.body = b"%d" % self.count
            place = len(writer.bodies)
            parts: list[Part] = [messages(place, [writer.body])]
            writer.pending = writer.log.record(parts if writer.begun else [BEGUN, *parts], now=1)
            self.sent.add((place, writer.body))
        with self._ending(writer):
            record = writer.pending
            writer.log.append(record)
            writer.mirror.appended(record, writer.log)
            place = len(writer.bodies)
            assert self.acknowledged.setdefault(place, writer.body) == writer.body
            writer.bodies.append(writer.body)
            writer.begun = True

    def _checkpoint(self, writer: Writer, whole: bool, between: int = 0) -> None:
        """Have a process make a checkpoint as nsqd does: with all messages in slices, or with the newest in itself.

        It appends `between` messages when the checkpoint is written and does not count yet.
        """
        if writer.pending is not None or not writer.begun:
            writer.engine.plan = []
            return
        with self._ending(writer), mock.patch.object(mirrors, "_LARGE", 1 if whole else 1 << 20):
            plan, checkpoint = writer.mirror.plan(), writer.log.checkpoint_writer()
            try:
                parts, stored = write_plan(plan, checkpoint, now=1)
                part = checkpoint.write(parts, now=1)
            except RemoteFailed:
                writer.mirror.unused += plan.unused
                raise
            writer.made = checkpoint, stored, plan.unused
            for _ in range(between):
                if writer in self.writers:
                    self._append(writer)
            if writer in self.writers and writer.pending is None:
                self._announce(writer, writer.log.record([part], now=1))

    def _announce(self, writer: Writer, record: Record) -> None:
        """Have a checkpoint count, and delete what it replaces."""
        assert writer.made is not None
        checkpoint, stored, unused = writer.made
        with self._ending(writer):
            writer.log.append(record)
            writer.mirror.appended(record, writer.log)
            writer.mirror.moved(stored)
            older_by, writer.first = (1 if writer.first else None), False
            checkpoint.delete_replaced(older_by=older_by, unused=unused)

    def _release(self, writer: Writer) -> None:
        with self._ending(writer):
            writer.log.release(now=1)
            self.writers.remove(writer)

    @contextlib.contextmanager
    def _ending(self, writer: Writer) -> Any:
        try:
            yield
        except RemoteFailed:
            pass  # and it tries again
        except Fenced:
            if writer in self.writers:
                self.writers.remove(writer)
        finally:
            writer.engine.plan = []
            writer.pending = writer.log.unsettled

    def _successor(self, appends: int, whole: bool, *, new: bool = True) -> Callable[[], None]:
        """Return what a process does amid a call of another: a new one that takes over, or the last that did."""

        def act() -> None:
            writer = self._start(take_over=True) if new or not self.writers else self.writers[-1]
            assert writer is not None
            for _ in range(appends):
                if writer in self.writers:
                    self._proceed(writer)
            if writer in self.writers:
                self._checkpoint(writer, whole)

        return act

    # --- rules -------------------------------------------------------------------------------------------------

    @rule(take_over=st.booleans(), plan=PLANS)
    def start(self, take_over: bool, plan: list[str]) -> None:
        self._start(take_over, plan)

    @rule(
        take_over=st.booleans(), step=st.integers(0, 7), appends=st.integers(0, 2), whole=st.booleans(),
        new=st.booleans(),
    )  # fmt: skip
    def start_while_another_does(self, take_over: bool, step: int, appends: int, whole: bool, new: bool) -> None:
        self._start(take_over, [*[""] * step, self._successor(appends, whole, new=new)])

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), plan=st.lists(FATES, max_size=3))
    def append(self, data: st.DataObject, plan: list[str]) -> None:
        writer = data.draw(st.sampled_from(self.writers))
        writer.engine.plan = list(plan)
        self._proceed(writer)

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), whole=st.booleans(), plan=PLANS, between=st.integers(0, 2))
    def checkpoint(self, data: st.DataObject, whole: bool, plan: list[str], between: int) -> None:
        writer = data.draw(st.sampled_from(self.writers))
        writer.engine.plan = list(plan)
        self._checkpoint(writer, whole, between)

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), whole=st.booleans(), step=st.integers(0, 10), appends=st.integers(0, 2), other=st.booleans())
    def checkpoint_while_another_takes_over(
        self, data: st.DataObject, whole: bool, step: int, appends: int, other: bool
    ) -> None:
        writer = data.draw(st.sampled_from(self.writers))
        writer.engine.plan = [*[""] * step, self._successor(appends, other)]
        self._checkpoint(writer, whole)

    @precondition(lambda self: self.writers)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        writer = data.draw(st.sampled_from(self.writers))
        if writer.pending is None:
            self._release(writer)

    @precondition(lambda self: self.writers)
    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        self.writers.remove(data.draw(st.sampled_from(self.writers)))

    @precondition(lambda self: self.networks)
    @rule(data=st.data())
    def deliver_what_is_late(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.networks)).deliver()

    @invariant()
    def everything_acknowledged_is_there_and_nothing_is_invented(self) -> None:
        contents = Contents()
        contents.load(RemoteLog(self.engine, owner="reader"))
        found = dict(enumerate(contents.bodies))

        assert {place: found.get(place) for place in self.acknowledged} == self.acknowledged
        assert set(found.items()) <= self.sent


TestRemote = RemoteMachine.TestCase
TestRemote.settings = settings(
    max_examples=examples(100, 3000), stateful_step_count=30, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip
