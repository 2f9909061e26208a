"""What nsqd does from time to time goes on, whatever happens once."""

import asyncio
from pathlib import Path

import pytest
from doors import options, quiet

from lapwing.broker.broker import Broker
from lapwing.broker.keeper.keeper import Checkpoint
from lapwing.nsqd.daemon import Daemon


async def test_a_mistake_in_one_checkpoint_does_not_end_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    went_on = asyncio.Event()
    tried = 0

    begin = Broker.begin_checkpoint

    def begin_checkpoint(broker: Broker, *, now: int) -> Checkpoint:
        nonlocal tried
        tried += 1
        if tried == 1:
            raise OverflowError("something that nobody has thought of")
        went_on.set()
        return begin(broker, now=now)

    monkeypatch.setattr(Broker, "begin_checkpoint", begin_checkpoint)
    daemon = Daemon(
        options(
            tcp_address="127.0.0.1:0",
            http_address="127.0.0.1:0",
            data_path=str(tmp_path),
            checkpoint_interval=1_000_000,
        ),
        quiet(),
    )
    await daemon.start()
    try:
        async with asyncio.timeout(60):
            await went_on.wait()
    finally:
        await daemon.stop()
