"""The nsq_* programs killed with SIGKILL: what was not finished comes again, what was acknowledged is not lost."""

import contextlib
import os
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from tool_runs import channel_of, consumed, contents, finished, publish, run, started, under_way

from daemons import nsqd as running_nsqd
from daemons import program, until

MESSAGES = [b"%d" % number for number in range(2000)]


@pytest.fixture(scope="module")
def nsqd():
    with running_nsqd() as daemon:
        yield daemon


@pytest.mark.parametrize("tool", ["nsq_to_file", "nsq_to_nsq"])
def test_a_tool_that_is_killed_and_started_again_loses_nothing(nsqd, tmp_path, tool):
    topic, copies = f"killed-{tool}", f"copies-{tool}"
    publish(nsqd, topic, *MESSAGES)
    flags = [f"-topic={topic}", "-channel=c", f"-nsqd-tcp-address={nsqd.tcp}"]
    if tool == "nsq_to_file":
        flags += [f"-output-dir={tmp_path}"]
        slow, fast = ["-sync-interval=1h", "-max-in-flight=2500"], ["-sync-interval=50ms"]  # none is finished before
    else:
        flags += [f"-destination-topic={copies}", f"-destination-nsqd-tcp-address={nsqd.tcp}"]
        slow = fast = ["-max-in-flight=5"]
    with started(tool, *flags, *slow) as process:
        until(lambda: under_way(channel_of(nsqd, topic, "c")), seconds=60, what="messages under way")
        process.kill()
        process.wait()
    with started(tool, *flags, *fast):
        until(lambda: finished(nsqd, topic, "c", 2000), seconds=60, what="everything finished")
        if tool == "nsq_to_file":
            found = contents(tmp_path).split()
        else:
            [copied] = httpx.get(f"{nsqd.url}/stats?format=json&topic={copies}", trust_env=False).json()["topics"]
            found = consumed(nsqd, copies, copied["message_count"])

    assert set(found) == {*MESSAGES}


@pytest.fixture
def endpoint():
    """A server that takes its time; `taken` are the bodies that it has answered for."""

    class Endpoint(BaseHTTPRequestHandler):
        taken: list[bytes] = []  # noqa: RUF012
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(0.001)
            self.taken.append(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def handle(self):
            with contextlib.suppress(ConnectionError):  # the caller was killed
                super().handle()

        def log_message(self, *_):
            """Quiet."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 200  # it is called on a hundred connections at once

    server = Server(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Endpoint.url = f"http://127.0.0.1:{server.server_port}"
    yield Endpoint
    server.shutdown()
    server.server_close()


def test_nsq_to_http_killed_posts_everything_that_it_did_not_finish(nsqd, endpoint):
    messages = MESSAGES[:600]
    publish(nsqd, "killed-http", *messages)
    flags = ["-topic=killed-http", "-channel=c", f"-post={endpoint.url}/", f"-nsqd-tcp-address={nsqd.tcp}"]
    for _ in range(2):
        least = len(endpoint.taken) + 50
        with started("nsq_to_http", *flags, "-max-in-flight=20") as process:
            until(lambda least=least: len(endpoint.taken) > least, what="some posted")
            process.kill()
            process.wait()
    left = channel_of(nsqd, "killed-http", "c")
    with started("nsq_to_http", *flags, "-max-in-flight=200"):
        until(lambda: finished(nsqd, "killed-http", "c", len(messages)), what="everything finished")

    assert left["depth"] + left["in_flight_count"] > 0
    assert set(endpoint.taken) == {*messages}


def test_nsq_tail_killed_prints_everything_that_it_did_not_finish(nsqd, tmp_path):
    publish(nsqd, "killed-tail", *MESSAGES)
    command = [*program("nsq_tail"), "-topic=killed-tail", "-channel=c", f"-nsqd-tcp-address={nsqd.tcp}"]
    read_end, write_end = os.pipe()
    first = subprocess.Popen(
        [*command, "-max-in-flight=50"], stdin=subprocess.DEVNULL, stdout=write_end, stderr=subprocess.DEVNULL
    )
    os.close(write_end)
    with open(read_end, "rb") as printed:
        lines = [printed.readline() for _ in range(100)]
        first.kill()
        first.wait()
        lines += printed.readlines()
    status, out, _ = run("nsq_tail", *command[1:], "-n=1")  # whoever comes next gets what was not finished
    lines += out.encode().splitlines(keepends=True)
    with started("nsq_tail", *command[1:]) as second:
        until(lambda: finished(nsqd, "killed-tail", "c", 2000), what="everything finished")
        second.terminate()
        lines += second.communicate()[0].splitlines(keepends=True)

    assert status == 0
    assert {line.rstrip(b"\n") for line in lines if line.endswith(b"\n")} == {*MESSAGES}


def test_to_nsq_killed_has_published_whole_lines_from_the_first_on(nsqd):
    command = [*program("to_nsq"), "-topic=killed-to", f"-nsqd-tcp-address={nsqd.tcp}"]
    for order in ("/topic/create?topic=killed-to", "/channel/create?topic=killed-to&channel=c"):
        httpx.post(f"{nsqd.url}{order}", trust_env=False).raise_for_status()
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    process.stdin.write(b"\n".join(MESSAGES[:1000]) + b"\n" + MESSAGES[1000][:2])  # the last line is not whole
    process.stdin.flush()
    until(lambda: channel_of(nsqd, "killed-to", "c").get("message_count", 0) >= 500, what="half of them published")
    process.kill()
    process.wait()
    process.stdin.close()
    stats = f"{nsqd.url}/stats?format=json"
    until(lambda: not httpx.get(stats, trust_env=False).json()["producers"], what="the end of its connection")
    came = channel_of(nsqd, "killed-to", "c")["message_count"]
    rest = b"\n".join(MESSAGES[came:])
    status, _, _ = run("to_nsq", *command[1:], stdin=rest)

    assert 500 <= came <= 1000
    assert status == 0
    assert consumed(nsqd, "killed-to", 2000, channel="c") == MESSAGES
