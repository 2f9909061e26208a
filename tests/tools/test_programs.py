"""Each nsq_* program as a process, on real daemons."""

import json
import os
import signal
import socket
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from tool_runs import channel_of, consumed, contents, ended, finished, publish, run, started

from daemons import nsqd as running_nsqd
from daemons import program, start_nsqlookupd, until

TOOLS = ["nsq_tail", "nsq_to_file", "nsq_to_http", "nsq_to_nsq", "to_nsq", "nsq_stat"]


@pytest.fixture(scope="module")
def nsqd():
    with running_nsqd() as daemon:
        yield daemon


# -- what all have in common


@pytest.mark.parametrize("tool", TOOLS)
def test_help_is_usage_on_stderr_and_status_zero(tool):
    status, out, err = run(tool, "-help")

    assert (status, out) == (0, "")
    assert err.startswith(f"Usage of {tool}:")


@pytest.mark.parametrize("tool", [tool for tool in TOOLS if tool != "to_nsq"])
def test_version_is_one_line(tool):
    assert run(tool, "-version") == (0, f"{tool} v1.3.0\n", "")


@pytest.mark.parametrize(
    ("tool", "flags"),
    [
        ("nsq_tail", ["-bogus"]),
        ("to_nsq", ["-version"]),
        ("nsq_tail", ["-n", "many"]),
        ("nsq_tail", ["-consumer-opt", "no_such_option,1"]),
        ("nsq_to_http", ["-consumer-opt", "max_attempts,99999999"]),
        ("nsq_to_nsq", ["-producer-opt", "dial_timeout,soon"]),
    ],
)
def test_a_bad_flag_is_status_two(tool, flags):
    status, _, err = run(tool, *flags)

    assert status == 2
    assert "Usage of" in err


NSQD = "-nsqd-tcp-address=127.0.0.1:1"
LOOKUPD = "-lookupd-http-address=127.0.0.1:1"


@pytest.mark.parametrize(
    ("tool", "flags", "text"),
    [
        ("nsq_tail", ["-topic=t"], "--nsqd-tcp-address or --lookupd-http-address required"),
        ("nsq_tail", ["-topic=t", NSQD, LOOKUPD], "use --nsqd-tcp-address or --lookupd-http-address not both"),
        ("nsq_tail", [NSQD], "--topic required"),
        ("nsq_tail", [NSQD, "-topic=a b"], "invalid topic name"),
        ("nsq_tail", [NSQD, "-topic=t", "-channel=a b"], "invalid channel name"),
        ("nsq_tail", ["-lookupd-http-address=host", "-topic=t"], "missing port"),
        ("nsq_to_file", [NSQD, "-topic=t", "x"], "unknown arguments: [x]"),
        ("nsq_to_file", [NSQD, "-topic=t", "-log-level=loud"], "--log-level is invalid"),
        ("nsq_to_file", [NSQD, "-topic=t", "-channel="], "--channel is required"),
        ("nsq_to_file", [NSQD, "-topic=t", "-gzip-level=0"], "invalid --gzip-level value (0), should be 1-9"),
        ("nsq_to_file", [NSQD], "--topic or --topic-pattern required"),
        ("nsq_to_file", [NSQD, "-topic-pattern=x"],
         "--lookupd-http-address must be specified when no --topic specified"),
        ("nsq_to_file", [NSQD, "-topic=t", "-http-client-connect-timeout=0"],
         "--http-client-connect-timeout should be positive"),
        ("nsq_to_file", [NSQD, "-topic=t", "-gzip", "-filename-format=x"],
         "missing <REV> in --filename-format when gzip, rotation, or work dir enabled"),
        ("nsq_to_http", [NSQD], "--topic and --channel are required"),
        ("nsq_to_http", [NSQD, "-topic=t"], "--get or --post required"),
        ("nsq_to_http", [NSQD, "-topic=t", "-get=h/%s", "-post=h"], "use --get or --post not both"),
        ("nsq_to_http", [NSQD, "-topic=t", "-get=h"], "invalid GET address - must be a printf string"),
        ("nsq_to_http", [NSQD, "-topic=t", "-get=h/%s", "-content-type=x"], "--content-type only used with --post"),
        ("nsq_to_http", [NSQD, "-topic=t", "-post=h", "-content-type="], "--content-type requires a value when used"),
        ("nsq_to_http", [NSQD, "-topic=t", "-post=h", "-sample=1.5"], "ERROR: --sample must be between 0.0 and 1.0"),
        ("nsq_to_http", [NSQD, "-topic=t", "-post=h", "-header=x"], "--header value format should be 'key=value'"),
        ("nsq_to_nsq", [NSQD], "--topic and --channel are required"),
        ("nsq_to_nsq", [NSQD, "-topic=a b"], "--topic is invalid"),
        ("nsq_to_nsq", [NSQD, "-topic=t", "-destination-topic=a b"], "--destination-topic is invalid"),
        ("nsq_to_nsq", [NSQD, "-topic=t", "-channel=a b"], "--channel is invalid"),
        ("nsq_to_nsq", [NSQD, "-topic=t"], "--destination-nsqd-tcp-address required"),
        ("to_nsq", [NSQD], "--topic required"),
        ("to_nsq", [NSQD, "-topic=t", "-delimiter=ab"], "--delimiter must be a single byte"),
        ("to_nsq", ["-topic=t"], "--nsqd-tcp-address required"),
        ("nsq_stat", [], "--topic and --channel are required"),
        ("nsq_stat", ["-topic=t", "-channel=c"], "--nsqd-http-address or --lookupd-http-address required"),
        ("nsq_stat", ["-topic=t", "-channel=c", "-interval=0"], "--interval should be positive"),
        ("nsq_stat", ["-topic=t", "-channel=c", "-count=0"], "--count should be positive"),
        ("nsq_stat", ["-topic=t", "-channel=c", "-nsqd-http-address=http://h:1"],
         "--nsqd-http-address error - address should not contain scheme"),
        ("nsq_stat", ["-topic=t", "-channel=c", LOOKUPD], "ERROR: failed to get topic producers - "),
        ("nsq_stat", ["-topic=t", "-channel=c", "-nsqd-http-address=127.0.0.1:1"],
         "ERROR: failed to get nsqd stats - failed to query any nsqd: "),
        ("nsq_tail", [NSQD, "-topic=t"], "connection refused"),
        ("nsq_to_http", [NSQD, "-topic=t", "-post=http://127.0.0.1:1"], "connection refused"),
        ("nsq_to_nsq", [NSQD, "-topic=t", "-destination-nsqd-tcp-address=127.0.0.1:1"], "connection refused"),
        ("to_nsq", [NSQD, "-topic=t"], "connection refused"),
    ],
)  # fmt: skip
def test_a_failed_check_is_one_stamped_line_and_status_one(tool, flags, text):
    status, out, err = run(tool, *flags)

    assert (status, out) == (1, "")
    assert text in err.splitlines()[-1]
    assert err[:4].isdigit() or err.startswith("[nsq_to_file]")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("tool", "flags"),
    [
        ("nsq_tail", []),
        ("nsq_to_file", ["-output-dir=/nowhere"]),
        ("nsq_to_http", ["-post=http://127.0.0.1:1/"]),
        ("nsq_to_nsq", ["-destination-nsqd-tcp-address=127.0.0.1:1"]),
        ("to_nsq", []),
    ],
)
def test_a_tool_that_waits_for_a_silent_nsqd_ends_at_once_when_told(tool, flags):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with started(tool, "-topic=t", f"-nsqd-tcp-address={address}", *flags) as process:
            connection, _ = silent.accept()
            with connection:
                began = time.monotonic()
                status, _, err = ended(process)

    assert (status, err) == (0, "")
    assert time.monotonic() - began < 5


# -- nsq_tail and to_nsq


def test_to_nsq_publishes_every_byte_and_nsq_tail_prints_it(nsqd):
    assert run("to_nsq", "-topic=tail", f"-nsqd-tcp-address={nsqd.tcp}", stdin=b"one\ntwo\n\nthree")[0] == 0
    status, out, _ = run(
        "nsq_tail", "-topic=tail", "-n=3", "-channel=c", "-print-topic", f"--nsqd-tcp-address={nsqd.tcp}"
    )

    assert (status, out) == (0, "tail | one\ntail | two\ntail | three\n")
    until(lambda: finished(nsqd, "tail", "c", 3), what="every message finished, the last one too")


def test_only_a_topic_that_nobody_has_is_waited_for_in_words():
    with start_nsqlookupd() as lookupd, running_nsqd(f"--lookupd-tcp-address={lookupd.tcp}") as nsqd:
        publish(nsqd, "known", b"x")
        until(lambda: httpx.get(f"{lookupd.url}/lookup?topic=known", trust_env=False).is_success, what="it registered")
        status, out, err = run("nsq_tail", "-topic=known", "-n=1", f"-lookupd-http-address={lookupd.http}")

    assert (status, out) == (0, "x\n")
    assert "waiting for one" not in err


def test_nsq_tail_gives_back_what_it_does_not_show(nsqd):
    publish(nsqd, "some", *(b"%d" % number for number in range(10)))
    status, out, _ = run("nsq_tail", "-topic=some", "-n=4", "-channel=c", f"-nsqd-tcp-address={nsqd.tcp}")

    assert (status, out) == (0, "0\n1\n2\n3\n")
    assert sorted(consumed(nsqd, "some", 6, channel="c")) == [b"%d" % number for number in range(4, 10)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_nsq_tail_ends_in_order_when_told(nsqd, number):
    topic = f"told{number}"
    with started("nsq_tail", f"-topic={topic}", f"-nsqd-tcp-address={nsqd.tcp}", "-channel=c") as process:
        until(lambda: channel_of(nsqd, topic, "c").get("client_count"), what="a consumer")
        publish(nsqd, topic, b"x")
        until(lambda: finished(nsqd, topic, "c", 1), what="the message finished")
        status, out, err = ended(process, number)

    assert (status, out) == (0, "x\n")
    assert f"INF    1 [{topic}/c] ({nsqd.tcp})" in err


def test_nsq_tail_fails_when_its_output_is_gone(nsqd):
    publish(nsqd, "gone", b"x")
    read_end, write_end = os.pipe()
    os.close(read_end)
    process = subprocess.Popen(
        [*program("nsq_tail"), "-topic=gone", f"-nsqd-tcp-address={nsqd.tcp}", "-channel=c"],
        stdin=subprocess.DEVNULL, stdout=write_end, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(write_end)

    assert process.wait(60) == 1
    assert consumed(nsqd, "gone", 1, channel="c") == [b"x"]


def test_to_nsq_sends_to_all_and_splits_where_told(nsqd):
    with running_nsqd() as other:
        flags = ["-topic=both", "-delimiter=,", f"-nsqd-tcp-address={nsqd.tcp}", f"-nsqd-tcp-address={other.tcp}"]
        assert run("to_nsq", *flags, stdin=b"a,b,,c")[0] == 0

        assert consumed(nsqd, "both", 3) == consumed(other, "both", 3) == [b"a", b"b", b"c"]


def test_to_nsq_paces_itself_and_says_so(nsqd):
    status, _, err = run("to_nsq", "-topic=paced", "-rate=50", f"-nsqd-tcp-address={nsqd.tcp}", stdin=b"x\n" * 20)

    assert status == 0
    assert "Throttling messages rate to max:50/second" in err
    assert len(consumed(nsqd, "paced", 20)) == 20


def test_to_nsq_stops_at_a_refused_message_after_those_before_it(nsqd):
    big = b"x" * (2 << 20)
    status, _, err = run("to_nsq", "-topic=big", f"-nsqd-tcp-address={nsqd.tcp}", stdin=b"before\n" + big + b"\n")

    assert status == 1
    assert "too big" in err
    assert consumed(nsqd, "big", 1) == [b"before"]


def test_to_nsq_ends_while_it_waits_for_input(nsqd):
    process = subprocess.Popen(
        [*program("to_nsq"), "-topic=waiting", f"-nsqd-tcp-address={nsqd.tcp}"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    process.stdin.write(b"first\n")
    process.stdin.flush()
    assert consumed(nsqd, "waiting", 1) == [b"first"]

    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    process.communicate()


# -- nsq_to_file


def test_nsq_to_file_writes_and_finishes_what_is_safe(nsqd, tmp_path):
    publish(nsqd, "file", *(b"%d" % number for number in range(500)))
    flags = ["-topic=file", f"-output-dir={tmp_path}", "-sync-interval=100ms", f"-nsqd-tcp-address={nsqd.tcp}"]
    with started("nsq_to_file", *flags) as process:
        until(lambda: finished(nsqd, "file", "nsq_to_file", 500), seconds=60, what="everything finished")
        assert contents(tmp_path) == b"".join(b"%d\n" % number for number in range(500))
        assert ended(process)[0] == 0

    [path] = tmp_path.iterdir()
    assert path.name.startswith("file.")
    assert path.name.endswith(".log")


def test_nsq_to_file_finishes_the_rest_when_it_is_stopped(nsqd, tmp_path):
    publish(nsqd, "file-stop", b"a", b"b", b"c")
    flags = ["-topic=file-stop", f"-output-dir={tmp_path}", "-gzip", "-sync-interval=1h"]
    with started("nsq_to_file", *flags, f"-nsqd-tcp-address={nsqd.tcp}") as process:
        until(lambda: list(tmp_path.iterdir()), what="a file")
        assert ended(process)[0] == 0

    assert contents(tmp_path) == b"a\nb\nc\n"
    until(lambda: finished(nsqd, "file-stop", "nsq_to_file", 3), what="everything finished")


def test_nsq_to_file_rotates_on_sighup_with_a_work_dir_and_lives_on(nsqd, tmp_path):
    work, out = tmp_path / "work", tmp_path / "out"
    flags = [
        "-topic=file-hup", f"-output-dir={out}", f"-work-dir={work}", "-sync-interval=50ms", "-skip-empty-files",
        f"-nsqd-tcp-address={nsqd.tcp}",
    ]  # fmt: skip
    with started("nsq_to_file", *flags) as process:
        for number in range(3):
            publish(nsqd, "file-hup", b"%d" % number)
            until(lambda: finished(nsqd, "file-hup", "nsq_to_file", number + 1), what="it written")  # noqa: B023
            process.send_signal(signal.SIGHUP)
            until(lambda: len(list(out.glob("*"))) == number + 1, what="it moved")  # noqa: B023
        status = ended(process)[0]

    assert status == 0
    assert contents(out) == b"0\n1\n2\n"
    assert not [path for path in work.rglob("*") if path.is_file()]


def test_nsq_to_file_leaves_messages_unfinished_when_it_cannot_write(nsqd, tmp_path):
    blocked = tmp_path / "not-a-directory"
    blocked.write_text("in the way")
    publish(nsqd, "file-fail", b"precious")
    status, _, err = run(
        "nsq_to_file", "-topic=file-fail", f"-output-dir={blocked}", f"-nsqd-tcp-address={nsqd.tcp}",
    )  # fmt: skip

    assert status == 1
    assert "FATAL" in err
    channel = channel_of(nsqd, "file-fail", "nsq_to_file")
    assert channel["depth"] + channel["in_flight_count"] + channel["deferred_count"] == 1


def test_nsq_to_file_finds_topics_by_pattern_at_once(tmp_path):
    with start_nsqlookupd() as lookupd, running_nsqd(lookupd_tcp_addresses=(lookupd.tcp,)) as nsqd:
        publish(nsqd, "logs.a", b"a")
        publish(nsqd, "logs.b", b"b")
        publish(nsqd, "other", b"c")
        until(lambda: len(httpx.get(f"{lookupd.url}/topics", trust_env=False).json()["topics"]) == 3, what="discovery")
        flags = [
            "-topic-pattern=^logs", f"-output-dir={tmp_path}", "-filename-format=<TOPIC>.log",
            "-sync-interval=50ms", f"-lookupd-http-address={lookupd.http}",
        ]  # fmt: skip
        with started("nsq_to_file", *flags) as process:
            until(lambda: contents(tmp_path) == b"a\nb\n", seconds=60, what="both topics written")
            assert ended(process)[0] == 0

    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs.a.log", "logs.b.log"]


# -- nsq_to_http


@pytest.fixture
def endpoint():
    """An HTTP server that keeps what it was sent; `failures` answers are 500 first."""

    class Endpoint(BaseHTTPRequestHandler):
        requests: list = []  # noqa: RUF012
        failures = 0

        def _answer(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if type(self).failures > 0:
                type(self).failures -= 1
                status = 500
            else:
                status = 200
                self.requests.append((self.command, self.path, body, dict(self.headers), self.headers))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST = _answer
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Endpoint.url = f"http://127.0.0.1:{server.server_port}"
    yield Endpoint
    server.shutdown()
    server.server_close()


def test_nsq_to_http_posts_bodies_as_they_are(nsqd, endpoint):
    publish(nsqd, "post", b"one", b"two \x00\xff")
    flags = [
        "-topic=post", f"-post={endpoint.url}/x", "-header=X-Me: you", "-content-type=text/x", "-status-every=1",
        f"-nsqd-tcp-address={nsqd.tcp}",
    ]  # fmt: skip
    with started("nsq_to_http", *flags) as process:
        until(lambda: finished(nsqd, "post", "nsq_to_http", 2), seconds=60, what="both finished")
        status, _, err = ended(process)

    assert status == 0
    assert sorted(request[2] for request in endpoint.requests) == [b"one", b"two \x00\xff"]
    headers = {name.lower(): value for name, value in endpoint.requests[0][3].items()}
    assert (headers["user-agent"], headers["x-me"], headers["content-type"]) == ("nsq_to_http v1.3.0", "you", "text/x")
    assert "[aggregate]: finished 1 - 99th: " in err


def test_headers_that_were_given_win_and_no_proxy_is_asked(nsqd, endpoint, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    publish(nsqd, "own-headers", b"x")
    flags = ["-header=content-type: application/json", "-header=User-Agent: mé", f"-nsqd-tcp-address={nsqd.tcp}"]
    with started("nsq_to_http", "-topic=own-headers", f"-post={endpoint.url}/x", *flags) as process:
        until(lambda: finished(nsqd, "own-headers", "nsq_to_http", 1), seconds=60, what="it finished")
        assert ended(process)[0] == 0

    [headers] = [request[4] for request in endpoint.requests]
    assert headers.get_all("Content-Type") == ["application/json"]
    assert [value.encode("latin-1").decode() for value in headers.get_all("User-Agent")] == ["mé"]


def test_nsq_to_http_gets_with_the_body_in_the_address(nsqd, endpoint):
    publish(nsqd, "get", b"a b&c")
    with started("nsq_to_http", "-topic=get", f"-get={endpoint.url}/?m=%s", f"-nsqd-tcp-address={nsqd.tcp}") as process:
        until(lambda: finished(nsqd, "get", "nsq_to_http", 1), seconds=60, what="it finished")
        assert ended(process)[0] == 0

    assert [request[:2] for request in endpoint.requests] == [("GET", "/?m=a+b%26c")]


def test_nsq_to_http_requeues_what_was_refused(nsqd, endpoint):
    endpoint.failures = 1
    publish(nsqd, "refused", b"x")
    flags = [
        "-topic=refused", f"-post={endpoint.url}", "-consumer-opt=default_requeue_delay,100ms",
        "-consumer-opt=backoff_multiplier,10ms", f"-nsqd-tcp-address={nsqd.tcp}",
    ]  # fmt: skip
    with started("nsq_to_http", *flags) as process:
        until(lambda: finished(nsqd, "refused", "nsq_to_http", 1), seconds=60, what="it finished at last")
        status, _, err = ended(process)

    assert status == 0
    assert "got status code 500" in err
    assert [request[2] for request in endpoint.requests] == [b"x"]
    assert channel_of(nsqd, "refused", "nsq_to_http")["requeue_count"] == 1


# -- nsq_to_nsq


def test_nsq_to_nsq_passes_everything_on(nsqd):
    sent = [b"%d" % number for number in range(1000)]
    publish(nsqd, "pass", *sent)
    with running_nsqd() as other:
        flags = ["-topic=pass", f"-destination-nsqd-tcp-address={other.tcp}", f"-nsqd-tcp-address={nsqd.tcp}"]
        with started("nsq_to_nsq", *flags) as process:
            assert consumed(other, "pass", 1000) == sent
            until(lambda: finished(nsqd, "pass", "nsq_to_nsq", 1000), what="everything finished")
            assert ended(process)[0] == 0


def test_nsq_to_nsq_selects_and_cuts_json(nsqd):
    bodies = [{"kind": "a", "n": 1, "x": "drop"}, {"kind": "b", "n": 2}, {"kind": "a", "n": 3}]
    publish(nsqd, "json", b"no json", *(json.dumps(body).encode() for body in bodies))
    flags = [
        "-topic=json", "-destination-topic=json-cut", "-require-json-field=kind", "-require-json-value=a",
        "-whitelist-json-field=n", "-whitelist-json-field=kind", f"-destination-nsqd-tcp-address={nsqd.tcp}",
        f"-nsqd-tcp-address={nsqd.tcp}",
    ]  # fmt: skip
    with started("nsq_to_nsq", *flags) as process:
        assert consumed(nsqd, "json-cut", 2) == [b'{"kind":"a","n":1}', b'{"kind":"a","n":3}']
        until(lambda: finished(nsqd, "json", "nsq_to_nsq", 4), what="everything finished")
        status, _, err = ended(process)

    assert status == 0
    assert "ERROR: Unable to decode json: " in err


def test_nsq_to_nsq_prefers_a_destination_that_lives(nsqd):
    publish(nsqd, "pool", *(b"%d" % number for number in range(10)))
    with running_nsqd() as other:
        flags = [
            "-topic=pool", "-destination-nsqd-tcp-address=127.0.0.1:1", f"-destination-nsqd-tcp-address={other.tcp}",
            "-producer-opt=publish_timeout,10m", "-consumer-opt=default_requeue_delay,50ms",
            "-consumer-opt=max_backoff_duration,0", f"-nsqd-tcp-address={nsqd.tcp}",
        ]  # fmt: skip
        with started("nsq_to_nsq", *flags) as process:
            assert sorted(consumed(other, "pool", 10)) == sorted(b"%d" % number for number in range(10))
            assert ended(process)[0] == 0


# -- nsq_stat


def test_nsq_stat_prints_its_lines_and_ends(nsqd):
    publish(nsqd, "stat", *[b"x"] * 11)
    httpx.post(f"{nsqd.url}/channel/create?topic=stat&channel=c", trust_env=False).raise_for_status()
    until(lambda: channel_of(nsqd, "stat", "c").get("depth") == 11, what="the backlog")
    status, out, err = run(
        "nsq_stat", "-topic=stat", "-channel=c", "-interval=50ms", "-count=2", f"-nsqd-http-address={nsqd.http}"
    )
    line = "      0       0 |      11      11       0     0     0 |       0       0           11       0"
    header = out.splitlines()[:2]

    assert (status, err) == (0, "")
    assert header[0].startswith("------rate------+")
    assert [row[:20] for row in out.splitlines()[2:]] == [line[:20]] * 2
    assert out.splitlines()[2].split("|")[2].split() == ["0", "0", "11", "0"]


def test_nsq_stat_knows_an_unknown_channel(nsqd):
    publish(nsqd, "stat-none", b"x")
    status, _, err = run("nsq_stat", "-topic=stat-none", "-channel=c", f"-nsqd-http-address={nsqd.http}")

    assert status == 1
    assert "ERROR: failed to find channel(c) in stats metadata for topic(stat-none)" in err
