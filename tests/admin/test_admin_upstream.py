"""How the daemons are asked: TLS where they want it, words where they fail, nobody who was not configured."""

import http.server
import socket
import ssl
import threading

import pytest
from admin_fakes import FakeNsqd

from certificates import self_signed
from lapwing.admin.graphite import Graphite, statsd_name
from lapwing.client.http import CallFailed, DaemonHttp
from lapwing.errors import ConfigError
from lapwing.net.sockets.tls import client_context


@pytest.fixture
def secure(tmp_path):
    """A plain nsqd that sends everybody to its TLS port, and that port."""
    certificate, key = self_signed(tmp_path)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b'{"version":"secure"}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    plain = FakeNsqd()
    plain.https_port = server.server_address[1]
    yield plain, certificate
    plain.down()
    server.shutdown()
    server.server_close()


async def test_a_daemon_that_wants_tls_is_asked_again_over_https_and_then_at_once(secure):
    plain, certificate = secure
    http = DaemonHttp(tls=client_context(root_ca_file=str(certificate)))
    answers = [await http.get(f"localhost:{plain.port}", "/info") for _ in range(3)]
    await http.aclose()

    assert answers == [{"version": "secure"}] * 3
    assert plain.asked == 1


async def test_an_unknown_certificate_is_refused(secure):
    plain, _ = secure
    http = DaemonHttp()
    with pytest.raises(CallFailed, match=r'Get "https://localhost:\d+/info": .*certificate'):
        await http.get(f"localhost:{plain.port}", "/info")
    await http.aclose()


async def test_a_refusal_is_told_with_status_and_body():
    node = FakeNsqd()
    http = DaemonHttp()
    with pytest.raises(CallFailed) as refused:
        await http.post(node.address, "/topic/pause", {"topic": "nope"})
    await http.aclose()
    node.down()

    assert str(refused.value) == 'got response 404 Not Found "{\\"message\\": \\"TOPIC_NOT_FOUND\\"}"'
    assert (refused.value.status, refused.value.code) == (404, "TOPIC_NOT_FOUND")


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "127.0.0.1:-1", "\ufffd:1", "a\nb:1", "evil/x?:4", "[::1:1"])
async def test_an_address_that_cannot_be_is_one_failure_among_the_answers(address):
    fake = FakeNsqd()
    http = DaemonHttp()
    asked = await http.ask_all([address, fake.name], lambda each: http.get(each, "/info"))
    await http.aclose()
    fake.down()

    assert list(asked.answers) == [fake.name]
    assert list(asked.failures) == [address]


async def test_nobody_listening_is_told_with_the_address():
    http = DaemonHttp()
    with pytest.raises(CallFailed, match=r'^Get "http://127\.0\.0\.1:1/stats\?format=json": connection refused$'):
        await http.get("127.0.0.1:1", "/stats", {"format": "json"})
    await http.aclose()


async def test_a_daemon_that_hangs_is_told_from_one_that_is_gone():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        http = DaemonHttp(request_timeout=0.1)
        with pytest.raises(CallFailed) as caught:
            await http.get(f"127.0.0.1:{silent.getsockname()[1]}", "/stats")
        await http.aclose()

    assert caught.value.reason == "no answer within 0.1 s"


def test_a_graph_of_graphite_is_summed_scaled_and_linked():
    graphite = Graphite("http://graphite:8080/", interval=60.0)
    messages = graphite.link("topic.orders.message_count", counter=True, base="/nsq")

    assert messages.startswith(
        "http://graphite:8080/render?target=scale%28summarize%28sumSeries%28stats.counters.nsq.%2A.topic."
    )
    assert "colorList=red" in graphite.link("topic.orders.depth", counter=False, base="/nsq")
    through = Graphite("http://graphite", proxying=True)
    assert through.link("topic.t.depth", counter=False, base="/nsq").startswith(
        "/nsq/render?target=summarize%28sumSeries%28"
    )


def test_names_lose_what_graphite_does_not_take():
    assert statsd_name("a/b c#ephemeral") == "a-b_cephemeral"


def test_a_graphite_url_has_to_be_one():
    with pytest.raises(ConfigError):
        Graphite("nonsense", proxying=True).check()
