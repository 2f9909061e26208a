"""`mode=subscribe`: any NSQ server as a stream, through a channel and a spool directory."""

import json
import struct
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from certificates import self_signed
from daemons import start_nsqd, start_nsqlookupd, until
from lapwing.spark.brokers.http import BrokerAway, call
from lapwing.spark.data_source import columns
from lapwing.spark.options import BrokerAccess, source_options
from lapwing.spark.source.subscribe import NotWelcome, SubscribeStreamReader

pytestmark = pytest.mark.spark


def reader(broker, tmp_path, **more):
    raw = {"nsqd": broker.address, "topic": "orders", "mode": "subscribe", "channel": "spark", "retryTimeout": "2s"}
    raw |= {"spoolDirectory": str(tmp_path / "spool"), "pollTimeout": "2s"} | more
    return SubscribeStreamReader(source_options(raw, streaming=True), columns(raw))


def begin(source):
    """Where the query begins, after the first batch, which has nothing in it."""
    start = source.initialOffset()
    assert source.latestOffset(start, source.getDefaultReadLimit()) == start
    assert source.partitions(start, start) == []
    return start


def rows_of(reader, start, end):
    return [row for task in reader.partitions(start, end) for batch in reader.read(task) for row in batch.to_pylist()]


def test_messages_are_in_a_file_before_they_are_finished(broker, tmp_path):
    broker.publish("orders", *(b"%d" % n for n in range(6000)))
    source = reader(broker, tmp_path)
    start = begin(source)
    end = source.latestOffset(start, source.getDefaultReadLimit())

    assert sorted(int(row["body"]) for row in rows_of(source, start, end)) == list(range(6000))
    assert end == {"files": 3}  # as many as a channel gives without being finished, in each
    until(lambda: broker.depth("orders", "spark") == 0)
    assert rows_of(reader(broker, tmp_path), start, end) == rows_of(source, start, end)


def test_what_was_spooled_and_not_yet_read_is_read_after_a_restart(broker, tmp_path):
    broker.publish("orders", b"x")
    first = reader(broker, tmp_path)
    start = begin(first)
    first.latestOffset(start, first.getDefaultReadLimit())

    again = reader(broker, tmp_path)
    end = again.latestOffset(start, again.getDefaultReadLimit())

    assert [row["body"] for row in rows_of(again, start, end)] == [b"x"]


def test_files_are_deleted_once_spark_is_done_with_them_and_numbers_go_on(broker, tmp_path):
    source = reader(broker, tmp_path)
    position = begin(source)
    for round_ in range(4):
        broker.publish("orders", b"%d" % round_)
        position = source.latestOffset(position, source.getDefaultReadLimit())

    assert position == {"files": 4}
    assert sorted(path.name[:20] for path in Path(tmp_path / "spool").iterdir()) == [f"{n:020}" for n in (2, 3)]


def test_a_limit_is_kept_and_nothing_is_lost_by_it(broker, tmp_path):
    broker.publish("orders", *(b"%d" % n for n in range(10)))
    source = reader(broker, tmp_path, maxMessagesPerTrigger="4")
    position, seen = begin(source), []
    while len(seen) < 10:
        end = source.latestOffset(position, source.getDefaultReadLimit())
        batch = rows_of(source, position, end)
        assert 0 < len(batch) <= 4
        seen += batch
        position = end

    assert sorted(int(row["body"]) for row in seen) == list(range(10))


def test_a_broker_killed_before_it_hears_that_messages_are_finished_gives_them_again_and_none_is_lost(
    broker, tmp_path, monkeypatch
):
    broker.publish("orders", *(b"%d" % n for n in range(3000)))
    source = reader(broker, tmp_path, retryTimeout="20s")
    start, spool = begin(source), source._spool

    def spool_and_kill(rows):
        spool(rows)
        monkeypatch.undo()
        broker.daemon.kill()
        broker.daemon.restart()

    monkeypatch.setattr(source, "_spool", spool_and_kill)
    position, seen = start, []
    while {int(row["body"]) for row in seen} != set(range(3000)):
        end = source.latestOffset(position, source.getDefaultReadLimit())
        seen += rows_of(source, position, end)
        position = end

    assert len(seen) >= 3000 + 2500  # the first file's came twice
    until(lambda: broker.depth("orders", "spark") == 0)


def test_a_query_on_a_channel(spark, broker, tmp_path, checkpoint):
    broker.publish("orders", *(b"%d" % n for n in range(100)))
    options = {"nsqd": broker.address, "topic": "orders", "mode": "subscribe", "channel": "spark"}
    frame = spark.readStream.format("lapwing").options(spoolDirectory=str(tmp_path / "spool"), **options).load()
    query = frame.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    for _ in range(2):
        query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
        broker.publish("orders", b"100")

    bodies = [int(bytes(row.body)) for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    assert sorted(bodies) == list(range(101))


# --- brokers that do not let everybody in


class Authority(BaseHTTPRequestHandler):
    """An auth server that knows one secret, good for the topic `orders`."""

    def do_GET(self):
        secret = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query).get("secret")
        grant = {"topic": "^orders$", "channels": [".*"], "permissions": ["subscribe", "publish"]}
        answer = {"ttl": 3600, "identity": "spark", "authorizations": [grant] if secret == ["open sesame"] else []}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Quietly."""


@pytest.fixture
def authority():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Authority)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def guarded(authority, start_broker):
    """A broker that asks the auth server about everybody."""
    broker = start_broker(f"--auth-http-address={authority}")
    broker.secret = "open sesame"
    broker.publish("orders", b"x")
    return broker


def take(source):
    start = begin(source)
    return rows_of(source, start, source.latestOffset(start, source.getDefaultReadLimit()))


def test_a_secret_opens_a_broker_with_auth(guarded, tmp_path):
    assert [row["body"] for row in take(reader(guarded, tmp_path, authSecret="open sesame"))] == [b"x"]
    until(lambda: guarded.depth("orders", "spark") == 0)


def test_a_secret_that_is_missing_wrong_or_for_something_else_is_an_error_at_once(guarded, tmp_path):
    where = rf"topic orders, channel spark, at {guarded.daemon.tcp}"
    with pytest.raises(NotWelcome, match=rf"{where}: nsqd wants AUTH: set the option authSecret"):
        take(reader(guarded, tmp_path))
    with pytest.raises(NotWelcome, match=rf"{where}: E_UNAUTHORIZED AUTH no authorizations found"):
        take(reader(guarded, tmp_path, authSecret="please"))
    with pytest.raises(NotWelcome, match=r'at .*: E_UNAUTHORIZED AUTH failed for SUB on "invoices" "spark"'):
        take(reader(guarded, tmp_path, topic="invoices", authSecret="open sesame"))
    assert guarded.depth("orders", "spark") is None


def test_an_auth_server_that_is_away_is_waited_for_and_then_an_error(start_broker, tmp_path):
    broker = start_broker("--auth-http-address=127.0.0.1:1")
    with pytest.raises(BrokerAway, match=r"topic orders, channel spark: .*E_AUTH_FAILED .*\(tried for 0.5 s\)"):
        take(reader(broker, tmp_path, authSecret="open sesame", retryTimeout="500ms"))


def test_a_query_on_a_broker_with_tls_and_auth(spark, authority, tmp_path, checkpoint):
    certificate, key = self_signed(tmp_path)
    tls = [f"--tls-cert={certificate}", f"--tls-key={key}", "--tls-required=true"]
    with start_nsqd(tmp_path, *tls, f"--auth-http-address={authority}") as daemon:
        until(lambda: "HTTPS" in daemon.addresses, what="HTTPS")
        access = BrokerAccess(tls=True, ca_file=str(certificate), secret="open sesame")
        bodies = struct.pack(">i", 100) + b"".join(struct.pack(">i", 3) + b"%03d" % n for n in range(100))
        call(daemon.https, access, "POST", "/mpub", {"topic": "orders", "binary": "true"}, bodies)
        options = {"nsqd": daemon.https, "topic": "orders", "mode": "subscribe", "channel": "spark"}
        options |= {"tls": "true", "tlsRootCaFile": str(certificate), "authSecret": "open sesame"}
        frame = spark.readStream.format("lapwing").options(spoolDirectory=str(tmp_path / "spool"), **options).load()
        query = frame.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()

        assert sorted(int(row.body) for row in spark.read.parquet(str(tmp_path / "out")).collect()) == list(range(100))
        (topic,) = call(daemon.https, access, "GET", "/stats", {"format": "json", "topic": "orders"})["topics"]
        assert [channel["depth"] for channel in topic["channels"]] == [0]


def test_a_broker_that_lets_a_consumer_have_only_a_few_is_asked_for_no_more(start_broker, tmp_path):
    broker = start_broker("--max-rdy-count=10")
    broker.publish("orders", *(b"%d" % n for n in range(35)))

    assert sorted(int(row["body"]) for row in take(reader(broker, tmp_path))) == list(range(35))


def test_a_topic_that_nobody_has_yet_is_waited_for(tmp_path, caplog):
    lookupd = start_nsqlookupd()
    raw = {"topic": "orders", "mode": "subscribe", "channel": "spark", "spoolDirectory": str(tmp_path)}
    raw |= {"lookupd": lookupd.http, "pollTimeout": "100ms"}
    source = SubscribeStreamReader(source_options(raw, streaming=True), columns(raw))
    with lookupd:
        start = begin(source)
        assert source.latestOffset(start, source.getDefaultReadLimit()) == start

    assert "nsqlookupd knows of no broker with the topic orders" in caplog.text
