"""What an executor does when a broker breaks off, lies, or has lost what it is asked for."""

import json
import os
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pytest

from lapwing import kernel
from lapwing.errors import LapwingError
from lapwing.spark.brokers import http as client
from lapwing.spark.brokers.http import BrokerAway, patiently
from lapwing.spark.data_source import columns
from lapwing.spark.options import BrokerAccess, sink_options, source_options
from lapwing.spark.sink.writer import stage
from lapwing.spark.source.batch_reader import LogBatchReader
from lapwing.spark.source.blocks import BARE, HEAD, PLACE, PLACED, QUARANTINED
from lapwing.spark.source.losses import DataLoss
from lapwing.spark.source.offsets import LogRange
from lapwing.spark.source.ranges import stream, stream_all
from lapwing.spark.source.survey import ServerWithoutLog, survey


class Script:
    """A broker of which every answer is a step of the test: a function of the request's query that writes."""

    def __init__(self):
        self.steps = []
        self.asked = []
        script = self

        class Door(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                parts = urlsplit(self.path)
                query = {key: values[0] for key, values in parse_qs(parts.query).items()}
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                script.asked.append((parts.path, query))
                step = script.steps.pop(0) if len(script.steps) > 1 else script.steps[0]
                step(self, query)

            do_POST = do_GET

            def log_message(self, format, *args):
                """Quietly."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"127.0.0.1:{self.server.server_port}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def script():
    found = Script()
    yield found
    found.close()


def block(first, count):
    frames = kernel.frame_bodies([b"%d" % n for n in range(first, first + count)], first, 1)
    return HEAD.pack(BARE, count, first, len(frames), 0) + frames


def sends(*pieces, whole=True):
    """Pieces, one HTTP chunk each; without `whole` the connection breaks after them."""

    def step(door, query):
        door.send_response(200)
        door.send_header("Transfer-Encoding", "chunked")
        door.end_headers()
        for piece in pieces:
            data = piece(query) if callable(piece) else piece
            door.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        if whole:
            door.wfile.write(b"0\r\n\r\n")
        else:
            door.close_connection = True

    return step


def says(status, **answer):
    def step(door, query):
        body = json.dumps(answer).encode()
        door.send_response(status)
        door.send_header("Content-Length", str(len(body)))
        door.end_headers()
        door.wfile.write(body)

    return step


def read(script, start=0, stop=10, **options):
    raw = {"nsqd": script.address, "topic": "t", "retryTimeout": "1s", **options}
    part = LogRange("t", 7, "abc", start, stop, script.address)
    return [(found.first, found.count) for found in stream(part, source_options(raw, streaming=False))]


def test_a_range_is_read_over_one_connection_that_is_kept(script):
    script.steps = [sends(block(0, 4), block(4, 6))]

    assert read(script) == read(script) == [(0, 4), (4, 6)]
    path, query = script.asked[0]
    assert path == "/log/read"
    assert {key: query[key] for key in ("topic", "from", "to", "log_id", "format", "headers")} == {
        "topic": "t", "from": "0", "to": "10", "log_id": "abc", "format": "raw", "headers": "false",
    }  # fmt: skip


def test_what_breaks_off_is_taken_up_where_it_broke(script):
    script.steps = [
        sends(block(0, 4), block(4, 6)[:30], whole=False),
        sends(whole=False),
        says(503, message="EXITING"),
        sends(block(4, 3)),
        sends(block(7, 3)),
    ]

    assert read(script) == [(0, 4), (4, 3), (7, 3)]
    assert [query["from"] for _, query in script.asked] == ["0", "4", "4", "4", "7"]


def test_a_broker_that_never_sends_anything_is_given_up_with_the_range_in_the_error(script):
    script.steps = [sends(whole=False)]

    with pytest.raises(BrokerAway, match=r"topic t, node 7 \(.*\), log abc, sequences \[0, 10\): broken off at 0"):
        read(script, retryTimeout="300ms")


def test_a_broker_that_sends_something_else_is_not_believed(script):
    script.steps = [sends(block(3, 4))]
    with pytest.raises(Exception, match="the broker sent 3 where 0 was expected"):
        read(script)

    script.steps = [sends(b"xxxx" + block(0, 4)[4:])]
    with pytest.raises(Exception, match="a block that begins with b'xxxx'"):
        read(script)

    script.steps = [sends(b"x" * 100)]
    with pytest.raises(Exception, match=r"\d+ messages in \d+ bytes"):
        read(script)


def test_what_the_log_has_lost_since_it_was_planned_is_a_loss_or_is_passed_over(script):
    script.steps = [says(416, message="OUT_OF_RANGE", first=6, next=20)]
    with pytest.raises(DataLoss, match=r"from 0 on: .*OUT_OF_RANGE"):
        read(script)

    script.steps = [says(416, message="OUT_OF_RANGE", first=6, next=20), sends(block(6, 4))]
    assert read(script, failOnDataLoss="false") == [(6, 4)]

    script.steps = [says(409, message="LOG_ID_MISMATCH", log_id="new")]
    assert read(script, failOnDataLoss="false") == []


def test_damaged_messages_are_a_loss_or_are_passed_over(script):
    damaged = HEAD.pack(QUARANTINED, 6, 0, 0, 3) + b"why"
    script.steps = [sends(damaged, block(6, 4))]

    assert read(script, failOnDataLoss="false") == [(6, 4)]
    with pytest.raises(DataLoss, match="6 messages from 0 on are damaged: why"):
        read(script)


def placed(first, count, path):
    frames = block(first, count)[HEAD.size :]
    name = os.fsencode(path)
    check = struct.pack("<II", len(frames), kernel.crc32c(frames))
    return HEAD.pack(PLACED, count, first, len(frames), 0) + PLACE.pack(0, 1, len(name)) + name + check, frames


def test_what_is_in_no_file_of_this_machine_is_asked_of_the_broker(script, tmp_path):
    here, frames = placed(0, 4, tmp_path / "here")
    (tmp_path / "here").write_bytes(frames)
    there, rest = placed(4, 6, tmp_path / "there")
    script.steps = [sends(here, there), sends(HEAD.pack(BARE, 6, 4, len(rest), 0) + rest)]
    raw = {"nsqd": script.address, "topic": "t", "retryTimeout": "1s"}
    part = LogRange("t", 7, "abc", 0, 10, script.address)
    found = stream(part, source_options(raw, streaming=False))

    assert [(each.first, each.count) for each in found] == [(0, 4), (4, 6)]
    assert [(query["from"], query.get("files")) for _, query in script.asked] == [("0", "true"), ("4", None)]

    script.steps = [sends(HEAD.pack(BARE, 4, 0, len(frames), 0) + frames, HEAD.pack(BARE, 6, 4, len(rest), 0) + rest)]
    never = source_options({**raw, "localFiles": "false"}, streaming=False)
    assert [each.count for each in stream(part, never)] == [4, 6]
    assert "files" not in script.asked[-1][1]


def test_a_kept_connection_that_was_closed_meanwhile_is_made_anew(script):
    def once(door, query):
        says(200, done=True)(door, query)
        door.close_connection = True

    script.steps = [once]
    access = BrokerAccess()
    for _ in range(3):
        assert client.call(script.address, access, "GET", "/x") == {"done": True}


def test_a_tcp_port_where_http_is_expected_is_named(broker):
    with pytest.raises(client.WrongPort, match=r"the TCP port of an nsqd; the HTTP port is needed \(4151 by default"):
        client.call(broker.daemon.tcp, BrokerAccess(), "GET", "/log/offsets")


def test_patience_ends(script):
    calls = []

    def ask():
        calls.append(1)
        raise BrokerAway("h:1", "refused")

    with pytest.raises(BrokerAway, match=r"the thing: h:1: refused \(tried for 0.5 s\)"):
        patiently("the thing", ask, BrokerAccess(retry_seconds=0.5))
    assert len(calls) > 1


def test_brokers_that_do_not_answer_are_named_beside_those_that_do(script):
    facts = {"topic": "t", "log_id": "abc", "first": 0, "next": 5, "bytes": 9, "channels": []}
    script.steps = [says(200, node_id=7, topics=[facts, {**facts, "topic": "other"}])]
    raw = {"nsqd": f"127.0.0.1:1,{script.address}", "topic": "t"}

    found = survey(source_options(raw, streaming=True))

    assert {topic: list(nodes) for topic, nodes in found.holdings.items()} == {"t": [7]}
    assert found.complaint().startswith("topic t at 127.0.0.1:1: ")


def test_a_server_without_a_log_is_an_error_at_once(script):
    raw = {"nsqd": script.address, "topic": "t"}
    options, sink = source_options(raw, streaming=True), sink_options(raw, streaming=True)
    script.steps = [says(404, message="NOT_FOUND")]
    with pytest.raises(ServerWithoutLog, match=r"topic t.*/offsets.*: 404 NOT_FOUND; .* mode=subscribe reads it"):
        survey(options)
    script.steps = [says(403, message="TLS_REQUIRED")]
    with pytest.raises(ServerWithoutLog, match=r"topic t at .*: 403 TLS_REQUIRED$"):
        survey(options)

    script.steps = [says(404, message="NOT_FOUND")]
    with pytest.raises(LapwingError, match="404 NOT_FOUND; a plain NSQ server cannot stage, mode=atleastonce"):
        stage(iter([pa.record_batch({"body": ["x"]})]), sink, sink.access.nsqd[0], "s", 1)


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (413, {"message": "MSG_TOO_BIG", "index": 1, "size": 9, "limit": 8}, "row 1 has a body of 9 bytes, .* takes 8"),
        (400, {"message": "INVALID_DEFER", "index": 1}, "row 1 has a defer_ms beyond the broker's --max-req-timeout"),
        (400, {"message": "INVALID_HEADERS", "index": 1}, "row 1 has headers of more than 16 KiB"),
        (413, {"message": "BODY_TOO_BIG"}, "413 BODY_TOO_BIG; a smaller batchBytes helps"),
    ],
)
def test_what_a_broker_refuses_is_named_by_its_row_or_with_the_remedy(script, status, answer, said):
    script.steps = [says(status, **answer)]
    sink = sink_options({"nsqd": script.address, "topic": "t"}, streaming=True)

    with pytest.raises(LapwingError, match=f"^topic t, batch 1, task 0, at {script.address}: .*{said}"):
        stage(iter([pa.record_batch({"body": ["x", "y"]})]), sink, sink.access.nsqd[0], "s", 1)


def test_lookupd_says_who_has_a_topic_and_tombstones_count(script):
    producers = [
        {"broadcast_address": "a", "http_port": 1, "topics": ["t"], "tombstoned": [], "active": True},
        {"broadcast_address": "b", "http_port": 2, "topics": ["t"], "tombstoned": ["t"], "active": True},
        {"broadcast_address": "c", "http_port": 3, "topics": ["u"], "tombstoned": [], "active": True},
    ]
    script.steps = [says(200, producers=producers, departed=[], started_ms_ago=1)]
    from lapwing.spark.brokers.directory import Directory

    access = BrokerAccess(lookupd=(script.address, "127.0.0.1:1"))
    assert Directory(access).find(["t"]) == ["a:1"]
    assert Directory(access).find((), "[tu]") == ["a:1", "c:3"]
    with pytest.raises(BrokerAway, match="nsqlookupd"):
        Directory(BrokerAccess(lookupd=("127.0.0.1:1",))).find(["t"])


# --- several ranges in one task


def read_all(script, *stops, **options):
    raw = {"nsqd": script.address, "topic": "t", "retryTimeout": "1s", **options}
    parts = tuple(LogRange(f"t{number}", 7, "abc", 0, stop, script.address) for number, stop in enumerate(stops))
    found = stream_all(parts, source_options(raw, streaming=False))
    return [(part.topic, block.first, block.count) for part, block in found]


def test_several_ranges_are_read_with_one_request(script):
    script.steps = [sends(block(0, 4), block(4, 2), block(0, 3), block(0, 1))]

    assert read_all(script, 6, 3, 1) == [("t0", 0, 4), ("t0", 4, 2), ("t1", 0, 3), ("t2", 0, 1)]
    assert [path for path, _ in script.asked] == ["/log/ranges"]


@pytest.mark.parametrize(
    "first",
    [
        sends(block(0, 6), block(0, 2), whole=False),
        sends(block(0, 6), block(0, 2), block(5, 1)),
        sends(block(0, 6), block(0, 2), b"nonsense of twenty-four bytes"),
        sends(block(0, 6), block(0, 2), HEAD.pack(QUARANTINED, 1, 2, 0, 3) + b"bad"),
    ],
    ids=["broken off", "another sequence", "nonsense", "damaged"],
)
def test_what_one_request_does_not_bring_is_read_range_by_range(script, first):
    def rest(query):
        return block(int(query["from"]), int(query["to"]) - int(query["from"]))

    script.steps = [first, sends(rest), sends(rest)]

    assert read_all(script, 6, 3, 1) == [("t0", 0, 6), ("t1", 0, 2), ("t1", 2, 1), ("t2", 0, 1)]
    assert [(path, query.get("topic"), query.get("from")) for path, query in script.asked] == [
        ("/log/ranges", None, None), ("/log/read", "t1", "2"), ("/log/read", "t2", "0"),
    ]  # fmt: skip


def test_a_broker_that_refuses_several_ranges_is_asked_for_each(script):
    def rest(query):
        return block(int(query["from"]), int(query["to"]) - int(query["from"]))

    script.steps = [says(404, message="NOT_FOUND"), sends(rest)]

    assert read_all(script, 2, 3) == [("t0", 0, 2), ("t1", 0, 3)]


def test_small_topics_are_read_in_one_task_whose_rows_come_together(broker):
    for number in range(60):
        broker.publish(f"small{number}", b"%d" % number, b"again")
    raw = {"nsqd": broker.address, "topicPattern": "small.*"}
    reader = LogBatchReader(source_options(raw, streaming=False), columns(raw))
    [task] = reader.partitions()
    [batch] = reader.read(task)

    rows = set(zip(*(batch.column(name).to_pylist() for name in ("topic", "sequence", "body")), strict=True))
    assert rows == {(f"small{n}", s, b) for n in range(60) for s, b in ((0, b"%d" % n), (1, b"again"))}
