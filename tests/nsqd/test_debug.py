"""`/debug`."""

import asyncio
import sys
import time

import pytest
from doors import Node


async def test_the_profile_shows_where_the_time_went() -> None:
    def work_hard(until: float) -> None:
        while time.monotonic() < until:
            sum(range(100))

    for seconds in (0.2, 1, 5, 20):  # a busy machine gives this process little of that time
        asked = asyncio.ensure_future(Node().ask("GET", f"/debug/pprof/profile?seconds={seconds}"))
        await asyncio.sleep(0)
        work_hard(time.monotonic() + seconds + 0.1)
        status, text = await asked
        lines = [line.rpartition(" ") for line in text.splitlines()]
        here = sum(int(count) for stack, _, count in lines if "work_hard" in stack)
        if here >= 10:
            break

    assert status == 200
    assert here >= 10


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "x", "301"])
async def test_a_profile_over_a_senseless_time_is_refused(seconds: str) -> None:
    assert (await Node().ask("GET", f"/debug/pprof/profile?seconds={seconds}"))[0] == 400


async def test_one_profile_at_a_time() -> None:
    node = Node()
    first = asyncio.ensure_future(node.ask("GET", "/debug/pprof/profile?seconds=300"))
    await asyncio.sleep(0)  # it begins
    second = await node.ask("GET", "/debug/pprof/profile?seconds=0.01")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    third = await node.ask("GET", "/debug/pprof/profile?seconds=0.01")

    assert second == (503, "another profile is being taken\n")
    assert third[0] == 200


async def test_stacks_name_tasks_and_threads() -> None:
    async def wait_in_vain() -> None:
        await asyncio.get_running_loop().create_future()

    task = asyncio.ensure_future(wait_in_vain())
    await asyncio.sleep(0)
    stacks = (await Node().ask("GET", "/debug/pprof/goroutine"))[1]
    places = (await Node().ask("GET", "/debug/pprof/block"))[1]
    task.cancel()

    assert "wait_in_vain" in stacks
    assert "thread MainThread" in stacks
    assert "wait_in_vain" in places


async def test_the_index_names_every_page_and_each_is_there() -> None:
    node = Node()
    status, index = await node.ask("GET", "/debug/pprof/")

    assert status == 200
    for page in ("cmdline", "heap", "goroutine", "block", "threadcreate", "symbol"):
        assert f'href="{page}"' in index
        assert (await node.ask("GET", f"/debug/pprof/{page}"))[0] == 200
    assert (await node.ask("GET", "/debug/pprof/cmdline"))[1] == "\0".join(sys.argv)
    assert (await node.ask("POST", "/debug/pprof/symbol", b"0x1"))[0] == 200


async def test_memory_can_be_freed_and_a_block_rate_set() -> None:
    node = Node()

    assert await node.ask("POST", "/debug/freememory") == (200, "")
    assert await node.ask("PUT", "/debug/setblockrate?rate=100") == (200, "")
    assert (await node.ask("PUT", "/debug/setblockrate?rate=x"))[1].startswith("invalid block rate : ")
