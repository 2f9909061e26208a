"""Deferred publishes cost more than others, so a client has fewer of them carried out in one turn."""

import asyncio
import itertools
from pathlib import Path

from doors import options, quiet
from rawtalk import dpub, hpub, identify

from lapwing.nsqd.daemon import Daemon

MOST = 2 * 512  # of one client in one turn: of what has waited, and of what has just come
SENT = 6000


async def test_others_have_their_turn_while_one_client_defers_very_many_messages(tmp_path: Path) -> None:
    daemon = Daemon(options(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0", data_path=str(tmp_path)), quiet())
    await daemon.start()
    topic = daemon.broker.topic("t")
    counts = [0]
    commit = daemon.broker.commit

    def counted(now: int) -> None:
        commit(now)
        counts.append(topic.log.next)

    daemon.broker.commit = counted  # type: ignore[method-assign]
    try:
        assert daemon.tcp is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", daemon.tcp.port)
        publishes = (dpub("t", 60_000, b"x") + hpub("t", b'{"a":"b"}', b"x")) * (SENT // 2)
        writer.write(b"  V2" + identify(headers=True, feature_negotiation=True) + publishes)
        async with asyncio.timeout(60):
            for _ in range(SENT):
                await reader.readuntil(b"\0\0\0\6\0\0\0\0OK")
        writer.close()
    finally:
        await daemon.stop()

    assert counts[-1] == SENT
    assert max(after - before for before, after in itertools.pairwise(counts)) <= MOST
