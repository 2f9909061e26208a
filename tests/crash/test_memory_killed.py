"""nsqd killed with messages in memory alone: a sequence that was read never names another message."""

import json
import struct
import urllib.request
from pathlib import Path

import daemons


def ask(url: str, body: bytes | None = None) -> bytes:
    with urllib.request.urlopen(url, data=body, timeout=60) as answer:
        return answer.read()


def offsets(nsqd: daemons.Daemon) -> tuple[str, int, int]:
    (topic,) = json.loads(ask(f"{nsqd.url}/log/offsets?topic=t"))["topics"]
    return topic["log_id"], topic["first"], topic["next"]


def test_a_reader_by_ranges_meets_a_gap_where_messages_were_lost(tmp_path: Path) -> None:
    with daemons.start_nsqd(tmp_path, "--durability=memory", "--mem-queue-size=100") as nsqd:
        ask(f"{nsqd.url}/mpub?topic=t", b"written\n" * 101)
        ask(f"{nsqd.url}/mpub?topic=t", b"lost\n" * 7)
        log_id, _, read_up_to = offsets(nsqd)
        nsqd.kill()
        nsqd.restart()
        ask(f"{nsqd.url}/pub?topic=t", b"new")
        again, first, end = offsets(nsqd)
        blocks = ask(f"{nsqd.url}/log/read?topic=t&from={read_up_to - 7}&format=raw&log_id={log_id}")

    assert (again, first, end) == (log_id, 0, 202)
    assert struct.unpack_from("<4sIQ", blocks) == (b"LWQ1", 100, 101)
    assert b"LWB1" in blocks
    assert any("101 to 200" in line and "lost" in line for line in nsqd.lines)
