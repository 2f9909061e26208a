"""Secrets over HTTP: every call of a broker carries `authSecret`, and a refusal is one sentence."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pytest
from driven import DrivenQuery

from lapwing.spark.brokers.http import NotAuthorized
from lapwing.spark.data_source import columns
from lapwing.spark.options import sink_options, source_options
from lapwing.spark.sink.writer import commit, stage
from lapwing.spark.source.batch_reader import LogBatchReader

READER = {"topic": "^orders$", "channels": ["^lake$"], "permissions": ["subscribe"]}
PUBLISHER = {"topic": "^orders$", "channels": [".*"], "permissions": ["publish"]}
SECRETS = {"reader": [READER], "publisher": [PUBLISHER]}


@pytest.fixture(scope="module")
def auth_server():
    """An auth server that knows `SECRETS`; its address."""

    class Auth(BaseHTTPRequestHandler):
        def do_GET(self):
            secret = parse_qs(urlsplit(self.path).query)["secret"][0]
            answer = {"ttl": 3600, "identity": secret, "authorizations": SECRETS.get(secret, [])}
            body = json.dumps(answer).encode()
            self.send_response(200 if secret in SECRETS else 403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format, *args):
            """Quietly."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Auth)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def guarded(start_broker, auth_server):
    return start_broker(f"--auth-http-address={auth_server}")


def publish(broker, **options):
    raw = {"nsqd": broker.address, "topic": "orders", "retryTimeout": "1s", **options}
    made = sink_options(raw, streaming=False)
    rows = pa.RecordBatch.from_pydict({"body": [b"1", b"2"]})
    commit([stage(iter([rows]), made, broker.address, "test", 0)], made)


def test_a_query_and_a_sink_work_with_secrets_for_their_own_topic_and_channel(guarded):
    publish(guarded, authSecret="publisher")
    query = DrivenQuery([guarded], channel="lake", authSecret="reader")
    query.catch_up()

    assert query.bodies() == [b"1", b"2"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, r"GET /log/offsets: it requires a secret: set the option authSecret"),
        ({"authSecret": "wrong"}, r"GET /log/offsets: it does not accept the secret of the option authSecret"),
        ({"authSecret": "publisher"}, r"GET /log/offsets: the secret lacks the permission subscribe.* on topic orders"),
    ],
)
def test_a_read_that_is_refused_says_so_at_once(guarded, options, said):
    raw = {"nsqd": guarded.address, "topic": "orders", **options}

    with pytest.raises(NotAuthorized, match=said):
        LogBatchReader(source_options(raw, streaming=False), columns(raw)).partitions()


def test_a_write_that_is_refused_says_so_at_once(guarded):
    with pytest.raises(NotAuthorized, match="POST /stage: the secret lacks the permission publish on topic orders"):
        publish(guarded, authSecret="reader")
