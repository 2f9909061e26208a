"""Unread answers of `/log/read` hold bounded memory, however many readers there are."""

import contextlib
import socket
from collections.abc import Iterator

import pytest
from rawtalk import Raw, get, memory, mpub

import daemons
from lapwing.net.server.answers import Refused
from lapwing.nsqd.http.read_budget import LEAST, ReadBudget

MIB = 1 << 20


def test_shares_become_smaller_as_others_hold_more_and_never_vanish() -> None:
    budget = ReadBudget(total=64 * MIB)
    shares = [budget.take(4 * MIB) for _ in range(200)]

    assert shares[0].size == 4 * MIB
    assert shares[-1].size == LEAST
    assert sum(share.size for share in shares) < 64 * MIB + 200 * LEAST


def test_a_share_is_free_again_when_its_answer_is_gone() -> None:
    budget = ReadBudget(total=MIB)

    async def answer(share: object) -> Iterator[bytes]:  # type: ignore[misc]
        yield b"x"

    never_started = answer(budget.take(LEAST))
    assert (budget.active, budget.free) == (1, MIB - LEAST)
    del never_started
    share = budget.take(LEAST)
    share.shrink(10)
    assert budget.free == MIB - 10
    del share

    assert (budget.active, budget.free) == (0, MIB)


def test_one_reader_too_many_is_refused() -> None:
    budget = ReadBudget(readers=1)
    share = budget.take(1)
    with pytest.raises(Refused, match="503 TOO_MANY_READERS"):
        budget.take(1)

    assert share.size == 1


@pytest.mark.slow
@pytest.mark.parametrize("form", ["format=raw", "format=json&limit=10000"])
def test_a_hundred_readers_that_read_nothing_hold_bounded_memory(form: str) -> None:
    with daemons.nsqd() as daemon, contextlib.ExitStack() as opened:
        with Raw(daemon) as raw:
            for _ in range(8):
                raw.ok(mpub("long", [b"x" * 40_000] * 100))
        before = memory(daemon)
        request = f"GET /log/read?topic=long&{form} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        readers = [opened.enter_context(socket.socket()) for _ in range(100)]
        for reader in readers:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect(("127.0.0.1", daemon.http_port))
            reader.sendall(request * 20)
        for reader in readers:
            assert reader.recv(15) == b"HTTP/1.1 200 OK"
        assert get(daemon, "/ping") == b"OK"
        held = memory(daemon) - before

    assert held < 250 * MIB  # 32 MB each, and 20 of them on every connection, would be far more
