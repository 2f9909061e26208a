"""`/log/...`, `/channel/commit` and `/stage...` of a real nsqd."""

import asyncio
import http.client
import json
import shutil
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from contextlib import nullcontext, suppress
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from daemons import nsqd, start_nsqd, until
from lapwing import kernel
from lapwing.log.segments.reader import InFile
from lapwing.nsqd.http import log as http_log
from lapwing.nsqd.http.read_budget import ReadBudget


class Asked:
    """A running nsqd, asked over HTTP: status and JSON of each answer."""

    def __init__(self, daemon):
        self.daemon = daemon

    def __call__(self, path, body=None, method=None):
        request = urllib.request.Request(f"{self.daemon.url}{path}", data=body, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, _json(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, _json(error.read())

    def raw(self, path):
        with urllib.request.urlopen(f"{self.daemon.url}{path}", timeout=30) as answer:
            return list(_blocks(answer.read()))


def _json(text):
    return json.loads(text) if text and text != b"OK" else None


def _blocks(data):
    """Each block of a raw answer: kind, first sequence, count, the frames, the extras."""
    at = 0
    while at < len(data):
        kind, number, first, frames, extras = struct.unpack_from("<4sIQII", data, at)
        at += 24
        positions = []
        if kind == b"LWB1":
            positions = list(struct.unpack_from(f"<{number + 1}i", data, at))
            at += 4 * number + 4
        body = data[at : at + frames]
        at += frames
        yield kind, first, number, [body[a:b] for a, b in pairwise(positions)], data[at : at + extras]
        at += extras


_numbers = count(1)


def mpub(*bodies):
    return struct.pack(">i", len(bodies)) + b"".join(struct.pack(">i", len(body)) + body for body in bodies)


@pytest.fixture(scope="module")
def shared():
    with nsqd("--node-id=7") as daemon:
        yield Asked(daemon)


@pytest.fixture
def topic(shared):
    """A topic of its own for each test, with ten messages in it."""
    name = f"topic{next(_numbers)}"
    shared(f"/mpub?topic={name}&binary=true", mpub(*(b"%d" % n for n in range(10))))
    return name


def test_offsets_say_where_a_log_begins_and_ends(shared, topic):
    status, answer = shared(f"/log/offsets?topic={topic}&topic=nowhere&at=0")

    assert (status, answer["node_id"], answer["broadcast_address"]) == (200, 7, "127.0.0.1")
    assert answer["http_port"] == shared.daemon.http_port
    (facts,) = answer["topics"]
    assert (facts["topic"], facts["first"], facts["next"], facts["at"]) == (topic, 0, 10, 0)
    assert len(facts["log_id"]) == 16
    assert facts["first_timestamp"] <= facts["last_timestamp"] < time.time_ns() + 10**9
    assert facts["bytes"] == 10 * (kernel.HEAD + 1)


def test_offsets_of_all_topics_and_times_left_out(shared, topic):
    _, answer = shared("/log/offsets?times=false")

    facts = {entry["topic"]: entry for entry in answer["topics"]}[topic]
    assert "first_timestamp" not in facts


def test_a_long_poll_is_answered_when_a_log_grows(shared, topic):
    answers = []
    begun = time.monotonic()
    path = f"/log/offsets?topic={topic}&after={topic}:10,nowhere:0&wait_ms=20000"
    waiting = threading.Thread(target=lambda: answers.append(shared(path)))
    waiting.start()
    until(lambda: shared(f"/pub?topic={topic}", b"more")[0] == 200)
    waiting.join(60)

    assert answers[0][1]["topics"][0]["next"] == 11
    assert time.monotonic() - begun < 15


def test_a_long_poll_ends_by_itself_and_at_once_when_there_is_more(shared, topic):
    begun = time.monotonic()
    assert shared(f"/log/offsets?topic={topic}&after={topic}:9&wait_ms=20000")[0] == 200
    assert shared(f"/log/offsets?topic={topic}&after={topic}:10&wait_ms=50")[0] == 200
    assert time.monotonic() - begun < 10


def test_a_client_that_hangs_up_on_a_long_poll_is_forgotten(shared, topic):
    connection = http.client.HTTPConnection(shared.daemon.http, timeout=60)
    connection.request("GET", f"/log/offsets?after={topic}:10&wait_ms=20000")
    connection.close()

    assert shared(f"/pub?topic={topic}", b"more")[0] == 200
    assert shared("/ping")[0] == 200


def test_raw_ranges_are_the_very_frames_with_their_positions(shared, topic):
    ((kind, first, number, frames, extras),) = shared.raw(f"/log/read?topic={topic}&from=3&to=6&format=raw")

    assert (kind, first, number, extras) == (b"LWB1", 3, 3, b"")
    assert [frame[kernel.HEAD :] for frame in frames] == [b"3", b"4", b"5"]
    assert [frame[18:34] for frame in frames] == [b"%016x" % ((7 << 54) + n) for n in (3, 4, 5)]


def test_positions_can_be_left_out(shared, topic):
    with urllib.request.urlopen(f"{shared.daemon.url}/log/read?topic={topic}&format=raw&positions=false") as answer:
        data = answer.read()

    assert struct.unpack_from("<4sIQII", data) == (b"LWF1", 10, 0, len(data) - 24, 0)
    assert [body for *_, body in kernel.decode_messages(data, 24, len(data))[0]] == [b"%d" % n for n in range(10)]


def _placed(data):
    """Each block of an answer to a reader of files: its first sequence, and the frames that lie where it says."""
    at = 0
    while at < len(data):
        kind, number, first, size, extras = struct.unpack_from("<4sIQII", data, at)
        at += 24
        if kind == b"LWP1":
            offset, chunks, length = struct.unpack_from("<QII", data, at)
            path = data[at + 16 : at + 16 + length]
            at += 16 + length
            checks = list(struct.iter_unpack("<II", data[at : at + 8 * chunks]))
            at += 8 * chunks
            with open(path, "rb") as file:
                file.seek(offset)
                frames = [file.read(length) for length, _ in checks]
            assert [kernel.crc32c(found) for found in frames] == [crc for _, crc in checks]
            assert sum(map(len, frames)) == size
            yield kind, first, number, b"".join(frames), data[at : at + extras]
        else:
            yield kind, first, number, data[at : at + size], data[at + size : at + size + extras]
            at += size
        at += extras


def test_a_reader_on_the_same_machine_is_told_where_messages_lie(shared):
    for start in range(0, 4000, 1000):
        shared("/mpub?topic=placed&binary=true", mpub(*(b"%d" % n + bytes(900) for n in range(start, start + 1000))))
    path = "/log/read?topic=placed&format=raw&positions=false&files=true"
    with urllib.request.urlopen(f"{shared.daemon.url}{path}&from=300&to=3700") as answer:
        blocks = list(_placed(answer.read()))

    kinds = [kind for kind, *_ in blocks]
    assert (kinds[0], b"LWP1" in kinds, kinds[-1]) == (b"LWF1", True, b"LWF1")  # the ends are amid a chunk
    assert [(first - 300, number) for _, first, number, *_ in blocks] == list(_runs(blocks))
    frames = b"".join(frames for *_, frames, _ in blocks)
    bodies = [body for *_, body in kernel.decode_messages(frames, 0, len(frames))[0]]
    assert bodies == [b"%d" % n + bytes(900) for n in range(300, 3700)]


def test_a_placed_block_has_the_headers_of_its_messages(shared):
    request = urllib.request.Request(
        f"{shared.daemon.url}/mpub?topic=noted&binary=true", mpub(b"a", b"b"), {"X-Lapwing-Headers": '{"k":"v"}'}
    )
    urllib.request.urlopen(request).close()
    path = "/log/read?topic=noted&format=raw&positions=false&files=true"
    with urllib.request.urlopen(f"{shared.daemon.url}{path}") as answer:
        ((kind, _, _, _, extras),) = _placed(answer.read())

    assert (kind, json.loads(extras)) == (b"LWP1", [[0, {"k": "v"}], [1, {"k": "v"}]])


def test_a_reader_from_elsewhere_is_told_nothing_of_files(shared, topic):
    host, port = shared.daemon.http.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60, source_address=("127.0.0.2", 0))
    connection.request("GET", f"/log/read?topic={topic}&format=raw&positions=false&files=true")
    data = connection.getresponse().read()
    connection.close()

    assert [kind for kind, *_ in _placed(data)] == [b"LWF1"]
    assert b"topics/" not in data  # a timestamp may hold the byte of a slash


async def test_others_are_let_in_while_a_reader_is_told_where_a_long_range_lies():
    class Log:
        end = 100

        def in_file(self, start, stop, max_bytes):
            return InFile(start, 1, "/log", 0, [(1, 1)])

    turns = 0

    async def others():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    places, share = http_log._in_files(Log(), 0, 100), ReadBudget().take(1)
    found = http_log._blocks(SimpleNamespace(keep=nullcontext), places, share, headers=False, positions=False)
    blocks = [block async for block in found]
    task.cancel()

    assert len(blocks) == 100
    assert turns >= 100


def test_a_range_of_a_topic_that_is_made_anew_meanwhile_breaks_off(shared):
    old, new = ([name * 1000] * 1000 for name in (b"o", b"n"))
    for _ in range(30):
        shared("/mpub?topic=anew&binary=true", mpub(*old))
    host, port = shared.daemon.http.split(":")
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)  # most of it has not been read when it ends
        slow.connect((host, int(port)))
        slow.sendall(b"GET /log/read?topic=anew&format=raw HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        data = bytearray(slow.recv(1000))
        assert shared("/topic/delete?topic=anew", b"")[0] == 200
        for _ in range(30):
            shared("/mpub?topic=anew&binary=true", mpub(*new))
        with suppress(ConnectionResetError):
            while more := slow.recv(1 << 20):
                data += more

    assert b"oooo" in data
    assert b"nnnn" not in data
    assert not data.endswith(b"0\r\n\r\n")


def test_a_reader_that_calls_the_hosts_own_name_is_near_too(shared, topic):
    with nsqd("--http-address=0.0.0.0:0") as everywhere:
        urllib.request.urlopen(f"{everywhere.url}/pub?topic=t", b"x").close()
        path = "/log/read?topic=t&format=raw&positions=false&files=true"
        with urllib.request.urlopen(f"http://127.0.1.1:{everywhere.http_port}{path}") as answer:
            assert [kind for kind, *_ in _placed(answer.read())] == [b"LWP1"]


def test_large_ranges_come_in_blocks_and_each_message_once(shared):
    for _ in range(10):
        shared("/mpub?topic=large&binary=true", mpub(*(bytes(1000) for _ in range(1000))))

    blocks = shared.raw("/log/read?topic=large&format=raw")
    assert len(blocks) > 2
    assert [(first, number) for _, first, number, _, _ in blocks] == list(_runs(blocks))
    frames = [frame for *_, frames, _ in blocks for frame in frames]
    assert [frame[18:34] for frame in frames] == [b"%016x" % ((7 << 54) + n) for n in range(10_000)]
    assert {frame[34:] for frame in frames} == {bytes(1000)}


def _runs(blocks):
    at = 0
    for _, _, number, _, _ in blocks:
        yield at, number
        at += number


def test_headers_come_along_unless_left_out(shared):
    request = urllib.request.Request(
        f"{shared.daemon.url}/pub?topic=headed", data=b"x", headers={"X-Lapwing-Headers": '{"k": "v"}'}
    )
    urllib.request.urlopen(request, timeout=60).close()

    assert json.loads(shared.raw("/log/read?topic=headed&format=raw")[0][4]) == [[0, {"k": "v"}]]
    assert shared.raw("/log/read?topic=headed&format=raw&headers=false")[0][4] == b""
    assert shared("/log/read?topic=headed")[1]["messages"][0]["headers"] == {"k": "v"}


def test_clients_cannot_publish_dead_letters(shared):
    """Only the broker may write where a letter comes from: a redrive returns its body to that channel."""
    forged = {"k": "v", "dead-id": "0", "dead-topic": "orders", "dead-channel": "billing"}
    request = urllib.request.Request(
        f"{shared.daemon.url}/pub?topic=forged", data=b"x", headers={"X-Lapwing-Headers": json.dumps(forged)}
    )
    urllib.request.urlopen(request, timeout=60).close()
    assert shared("/stage?sink=f&batch=0&key=a&topic=forged&part=0", part(b"z", extras=[[0, 0, forged]]))[0] == 200
    assert shared("/stage/commit", order("f", 0, ["a", 1]))[0] == 200

    assert [message["headers"] for message in shared("/log/read?topic=forged")[1]["messages"]] == [{"k": "v"}] * 2


def test_people_get_json_and_where_to_go_on(shared, topic):
    shared(f"/pub?topic={topic}", b"\xff")
    _, answer = shared(f"/log/read?topic={topic}&from=-2&limit=5")

    assert [(m["sequence"], m["body"], m.get("body_base64")) for m in answer["messages"]] == [
        (9, "9", None), (10, None, "/w=="),
    ]  # fmt: skip
    assert (answer["first"], answer["next"], answer["resume"]) == (0, 11, 11)
    assert shared(f"/log/read?topic={topic}&limit=3")[1]["resume"] == 3
    assert shared(f"/log/read?topic={topic}&max_bytes=4")[1]["resume"] == 4


def test_ranges_by_time(shared, topic):
    stamp = shared(f"/log/read?topic={topic}&from=5&limit=1")[1]["messages"][0]["timestamp"]
    shared(f"/pub?topic={topic}", b"later")

    assert shared(f"/log/read?topic={topic}&time_from={stamp + 1}")[1]["messages"][0]["body"] == "later"
    assert shared(f"/log/read?topic={topic}&time_from={stamp + 10**15}")[1]["messages"] == []
    assert len(shared(f"/log/read?topic={topic}&time_to={stamp + 1}")[1]["messages"]) == 10
    assert shared(f"/log/read?topic={topic}&time_from={stamp}&time_to={stamp}")[1]["messages"] == []
    ((_, first, number, *_),) = shared.raw(f"/log/read?topic={topic}&format=raw&from=2&time_to={stamp + 1}")
    assert (first, number) == (2, 8)


def test_raw_ranges_are_bounded_by_bytes_but_one_message_comes(shared, topic):
    frame = kernel.HEAD + 1

    def count(limit):
        blocks = shared.raw(f"/log/read?topic={topic}&format=raw&files=true&max_bytes={limit}")
        assert {kind for kind, *_ in blocks} == {b"LWB1"}
        return sum(number for _, _, number, _, _ in blocks)

    shared(f"/pub?topic={topic}", bytes(1_000_000))
    assert [count(limit) for limit in (0, 1, frame, 2 * frame - 1, 2 * frame, 10 * frame, 11 * frame)] == [
        1, 1, 1, 1, 2, 10, 10,
    ]  # fmt: skip
    assert count(2_000_000) == 11


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("", 400, "MISSING_ARG_TOPIC"),
        ("topic=a%20b", 400, "INVALID_ARG_TOPIC"),
        ("topic=nowhere", 404, "TOPIC_NOT_FOUND"),
        ("topic={topic}&from=x", 400, "INVALID_ARG_FROM"),
        ("topic={topic}&from=11", 416, "OUT_OF_RANGE"),
        ("topic={topic}&format=xml", 400, "INVALID_ARG_FORMAT"),
        ("topic={topic}&log_id=other", 409, "LOG_ID_MISMATCH"),
    ],
)
def test_what_cannot_be_read_is_refused(shared, topic, query, status, code):
    seen, answer = shared("/log/read?" + query.format(topic=topic))

    assert (seen, answer["message"]) == (status, code)


def test_a_reader_that_does_not_read_holds_nobody_up(shared):
    for _ in range(20):
        shared("/mpub?topic=slow&binary=true", mpub(*(bytes(1000) for _ in range(1000))))
    connection = http.client.HTTPConnection(shared.daemon.http, timeout=60)
    connection.request("GET", "/log/read?topic=slow&format=raw")
    answer = connection.getresponse()

    for _ in range(20):
        assert shared("/ping")[0] == 200
    assert sum(number for _, _, number, _, _ in _blocks(answer.read())) == 20_000
    connection.close()


def test_a_json_answer_ends_in_time_however_much_escapes_make_of_it(shared):
    count, body = 20, b"<" * 1_000_000  # six bytes of JSON each
    for _ in range(count):
        shared("/pub?topic=escapes", body)
    _, answer = shared("/log/read?topic=escapes")

    assert [message["sequence"] for message in answer["messages"]] == list(range(answer["resume"]))
    assert 2 <= answer["resume"] <= 4
    assert answer["messages"][0]["body"] == body.decode()


def test_a_time_before_all_is_the_beginning(shared, topic):
    assert shared(f"/log/offsets?topic={topic}&at=-1")[1]["topics"][0]["at"] == 0


def test_a_channel_is_made_and_moved_but_not_back(shared, topic):
    path = f"/channel/commit?topic={topic}&channel=lake"
    assert shared(f"{path}&sequence=4", b"")[1]["message"] == "CHANNEL_NOT_FOUND"
    assert shared(f"{path}&sequence=4&create=true", b"") == (200, {"cursor": 4})
    assert shared(f"{path}&sequence=7", b"") == (200, {"cursor": 7})
    assert shared(f"{path}&sequence=7", b"") == (200, {"cursor": 7})
    assert shared(f"{path}&sequence=5", b"") == (409, {"message": "CURSOR_CONFLICT", "cursor": 7})
    assert shared(f"{path}&sequence=5&back=true", b"") == (200, {"cursor": 5})
    assert shared(f"{path}&sequence=11", b"")[1] == {"message": "OUT_OF_RANGE", "first": 0, "next": 10}
    assert shared(f"{path}&sequence=5&log_id=other", b"")[1]["message"] == "LOG_ID_MISMATCH"
    assert shared(path, b"") == (400, {"message": "MISSING_ARG_SEQUENCE"})
    _, stats = shared(f"/stats?format=json&topic={topic}&channel=lake")
    assert stats["topics"][0]["channels"][0]["depth"] == 5


def test_many_channels_are_moved_at_once_and_what_was_refused_is_listed(shared, topic):
    shared("/pub?topic=beside", b"x")
    ids = {each["topic"]: each["log_id"] for each in shared("/log/offsets")[1]["topics"]}
    path = "/channel/commits?channel=many&create=true"
    order = [[topic, ids[topic], 4], ["beside", ids["beside"], 1], ["nowhere", "x", 0], [topic, "other", 1]]
    status, answer = shared(path, json.dumps(order).encode())

    assert (status, answer["moved"]) == (200, 2)
    assert answer["refused"] == [
        {"topic": "nowhere", "status": 404, "message": "TOPIC_NOT_FOUND"},
        {"topic": topic, "status": 409, "message": "LOG_ID_MISMATCH"},
    ]
    again = json.dumps([[topic, ids[topic], 2]]).encode()
    assert shared(path, again)[1]["refused"] == [{"topic": topic, "status": 409, "message": "CURSOR_CONFLICT"}]
    assert shared(f"{path}&back=true", again)[1] == {"moved": 1, "refused": []}
    assert shared(path, b'[["a", 1]]') == (400, {"message": "INVALID_COMMIT", "index": 0})
    assert shared(path, b"{}") == (400, {"message": "INVALID_BODY"})
    assert shared("/channel/commits", b"[]") == (400, {"message": "MISSING_ARG_CHANNEL"})


def test_many_ranges_are_read_at_once(shared, topic):
    shared("/pub?topic=beside2", b"x")
    ids = {each["topic"]: each["log_id"] for each in shared("/log/offsets")[1]["topics"]}

    def read(*ranges, more=""):
        request = urllib.request.Request(
            f"{shared.daemon.url}/log/ranges?positions=true{more}", data=json.dumps(ranges).encode()
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return [found[1:3] for found in _blocks(answer.read())]

    assert read([topic, ids[topic], 2, 5], ["beside2", ids["beside2"], 0, 1]) == [(2, 3), (0, 1)]
    assert read([topic, ids[topic], 3, 3]) == []
    wrong = {
        "OUT_OF_RANGE": ([[topic, ids[topic], 0, 99]], 416), "TOPIC_NOT_FOUND": ([["no", "x", 0, 1]], 404),
        "LOG_ID_MISMATCH": ([[topic, "x", 0, 1]], 409), "INVALID_RANGE": ([["a"]], 400),
    }  # fmt: skip
    for message, (ranges, status) in wrong.items():
        found = shared("/log/ranges", json.dumps(ranges).encode())
        assert (found[0], found[1]["message"]) == (status, message)


def test_a_committed_cursor_survives_a_crash(tmp_path):
    daemon = start_nsqd(tmp_path, "--checkpoint-interval=1h")
    ask = Asked(daemon)
    try:
        ask("/mpub?topic=t&binary=true", mpub(*(b"%d" % n for n in range(10))))
        ask("/channel/commit?topic=t&channel=c&sequence=4&create=true", b"")
        ask("/channel/commit?topic=t&channel=c&sequence=6", b"")
        daemon.kill()
        daemon.restart()

        assert ask("/log/offsets?topic=t")[1]["topics"][0]["channels"] == [{"channel": "c", "cursor": 6, "depth": 4}]
    finally:
        daemon.kill()


def test_damaged_messages_are_named_and_never_sent(tmp_path):
    daemon = start_nsqd(tmp_path)
    ask = Asked(daemon)
    try:
        for start in range(0, 3000, 1000):
            ask("/mpub?topic=t&binary=true", mpub(*(b"%06d" % n + bytes(500) for n in range(start, start + 1000))))
        daemon.stop()
        (segment,) = Path(tmp_path, "topics", "t-t").glob("*.log")
        with open(segment, "r+b") as file:
            file.seek(segment.stat().st_size // 2)
            file.write(b"garbage")
        daemon.restart()
        blocks = ask.raw("/log/read?topic=t&format=raw")

        damaged = [(first, number) for kind, first, number, _, _ in blocks if kind == b"LWQ1"]
        assert damaged == [(1000, 1000)]
        assert sum(number for _, _, number, _, _ in blocks) == 3000
        assert b"checksum" in next(extras for kind, *_, extras in blocks if kind == b"LWQ1")
    finally:
        daemon.kill()


# staging


def part(*bodies, extras=None):
    text = json.dumps(extras).encode() if extras else b""
    return struct.pack(">I", len(text)) + text + mpub(*bodies)


def order(sink, batch, *keys):
    return json.dumps({"sink": sink, "batch": batch, "keys": list(keys)}).encode()


def test_staged_parts_are_published_once_by_their_commit(shared):
    path = "/stage?sink=s1&batch=0&key=a&topic=staged"
    assert shared(f"{path}&part=0", part(b"x", b"y")) == (200, {"staged": True, "count": 2})
    assert shared(f"{path}&part=1", part(b"z", extras=[[0, 0, {"k": "v"}]]))[0] == 200
    assert shared("/log/offsets?topic=staged")[1]["topics"] == []
    assert shared("/stage/status?sink=s1")[1] == {"sink": "s1", "published": -1, "staged": [0]}

    assert shared("/stage/commit", order("s1", 0, ["a", 2])) == (200, {"published": 3, "already": False})
    assert shared("/stage/commit", order("s1", 0, ["a", 2])) == (200, {"published": 0, "already": True})
    assert shared(f"{path}&part=0", part(b"late"))[1] == {"staged": False}
    messages = shared("/log/read?topic=staged")[1]["messages"]
    assert [(m["body"], m["headers"]) for m in messages] == [("x", {}), ("y", {}), ("z", {"k": "v"})]


def test_an_aborted_part_cannot_be_committed(shared):
    shared("/stage?sink=s2&batch=0&key=a&part=0&topic=aborted", part(b"x"))
    assert shared("/stage/abort", order("s2", 0, "a"))[1] == {"dropped": 1}

    status, answer = shared("/stage/commit", order("s2", 0, ["a", 1]))
    assert (status, answer["message"]) == (409, "NOT_STAGED")


LONG_HEADERS = {"k": "5" * 16_377}  # 16,385 bytes as JSON


@pytest.mark.parametrize(
    ("query", "body", "status", "code"),
    [
        ("sink=s&batch=0&key=a&part=0", part(b"x"), 400, "MISSING_ARG_TOPIC"),
        ("sink=a/b&batch=0&key=a&part=0&topic=t", part(b"x"), 400, "INVALID_ARG_SINK"),
        ("sink=s&batch=-1&key=a&part=0&topic=t", part(b"x"), 400, "INVALID_ARG_BATCH"),
        ("sink=s&batch=0&key=../a&part=0&topic=t", part(b"x"), 400, "INVALID_ARG_KEY"),
        ("sink=s&batch=0&key=a&part=x&topic=t", part(b"x"), 400, "INVALID_ARG_PART"),
        ("sink=s&batch=0&key=a&part=0&topic=t", b"x", 400, "BAD_BODY"),
        ("sink=s&batch=0&key=a&part=0&topic=t", part(b"x")[:-1], 400, "BAD_BODY"),
        ("sink=s&batch=0&key=a&part=0&topic=t", part(b"x" * 1_048_577), 413, "MSG_TOO_BIG"),
        ("sink=s&batch=0&key=a&part=0&topic=t", part(b"x", extras=[[1, 0, {}]]), 400, "INVALID_EXTRAS"),
        ("sink=s&batch=0&key=a&part=0&topic=t", part(b"x", extras=[[0, 10**9, {}]]), 400, "INVALID_DEFER"),
        ("sink=s&batch=0&key=a&part=0&topic=t", part(b"x", extras=[[0, 0, {"k": 5}]]), 400, "INVALID_HEADERS"),
        ("sink=s&batch=0&key=a&part=0&topic=t", part(b"x", extras=[[0, 0, {"K": "5"}]]), 400, "INVALID_HEADERS"),
        ("sink=s&batch=0&key=a&part=0&topic=t", part(b"x", extras=[[0, 0, LONG_HEADERS]]), 400, "INVALID_HEADERS"),
    ],
)
def test_what_cannot_be_staged_is_refused(shared, query, body, status, code):
    seen, answer = shared(f"/stage?{query}", body)

    assert (seen, answer["message"]) == (status, code)


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"keys": []}', order("s", -1), order("a/b", 0), order("s", 0, ["a"])])
def test_a_commit_that_makes_no_sense_is_refused(shared, body):
    assert shared("/stage/commit", body)[0] == 400


@pytest.mark.parametrize("durability", ["os", "fsync", "memory"])
def test_a_broker_killed_while_it_publishes_carries_on_when_it_is_back(tmp_path, durability):
    """Killed at a moment nobody chose, again and again; the sink asks until it gets an answer."""
    daemon = start_nsqd(tmp_path, f"--durability={durability}", "--node-id=3")
    ask = Asked(daemon)
    try:
        for batch in range(3):
            for number in range(12):
                bodies = (b"%d-%d-%04d" % (batch, number, n) + bytes(400) for n in range(1000))
                ask(f"/stage?sink=s&batch={batch}&key=k&part={number}&topic=t{number % 2}", part(*bodies))
            committing = threading.Thread(target=_try, args=(ask, order("s", batch, ["k", 12])))
            committing.start()
            time.sleep(0.005 + 0.012 * batch)  # how far it gets is left to chance
            daemon.kill()
            committing.join(30)
            daemon.restart()
            if durability == "memory":
                continue  # what was only in memory is gone; what comes after the crash must still work
            assert ask("/stage/commit", order("s", batch, ["k", 12]))[0] == 200
            for name in ("t0", "t1"):
                blocks = ask.raw(f"/log/read?topic={name}&format=raw")
                seen = [frame[34:-400] for *_, frames, _ in blocks for frame in frames]
                wanted = [
                    b"%d-%d-%04d" % (done, number, n)
                    for done in range(batch + 1) for number in range(int(name[1]), 12, 2) for n in range(1000)
                ]  # fmt: skip
                assert seen == wanted
        assert ask("/ping")[0] == 200
    finally:
        daemon.kill()
        shutil.rmtree(tmp_path, ignore_errors=True)


def _try(ask, body):
    try:
        ask("/stage/commit", body)
    except (OSError, http.client.HTTPException):
        return  # it was killed


def test_messages_of_a_key_are_read_and_each_request_looks_at_so_many(monkeypatch):
    monkeypatch.setattr(http_log, "MAX_MESSAGES", 4)
    with nsqd() as daemon:
        asked = Asked(daemon)
        for number in range(10):
            asked("/pub?topic=t", body=b'{"id":"%d"}' % (number % 3))
        pages, at = [], 0
        while at < 10:
            status, answer = asked(f"/log/read?topic=t&from={at}&key=1&key_from=json:/id&limit=1")
            assert status == 200
            pages.append([message["sequence"] for message in answer["messages"]])
            assert at < answer["resume"] <= at + 4
            at = answer["resume"]
        refused = asked("/log/read?topic=t&key=1&key_from=nowhere")

    assert pages == [[1], [4], [7]]
    assert (refused[0], refused[1]["message"]) == (400, "INVALID_ARG_KEY_FROM")
