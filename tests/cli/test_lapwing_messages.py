"""pub, sub, tail and peek, as processes on a real nsqd."""

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from urllib.request import urlopen

import pytest
from commanding import PROGRAM, environment, lapwing, lapwing_json, process

from daemons import Daemon, nsqd, until

_NUMBERS = count()


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with nsqd() as running:
        yield running


@pytest.fixture
def topic() -> str:
    return f"topic{next(_NUMBERS)}"


def bodies(daemon: Daemon, topic: str, number: int = 100) -> list[str]:
    found = lapwing_json("peek", topic, "--from", "0", "--count", str(number), daemon=daemon)
    return [message["body"] for message in found]


def test_arguments_are_messages(daemon: Daemon, topic: str) -> None:
    lapwing("pub", topic, "one", "two words", daemon=daemon)

    assert bodies(daemon, topic) == ["one", "two words"]


def test_each_line_of_stdin_is_a_message(daemon: Daemon, topic: str) -> None:
    said = process("pub", topic, "--json", daemon=daemon, stdin=b"one\r\n\ntwo\nlast without an end")

    assert json.loads(said.stdout) == {"topic": topic, "published": 3}
    assert bodies(daemon, topic) == ["one", "two", "last without an end"]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_pub_ends_when_told_while_it_waits_for_input(
    daemon: Daemon, topic: str, number: signal.Signals, status: int
) -> None:
    running = subprocess.Popen([PROGRAM, "pub", topic], env=environment(daemon), stdin=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    assert running.stdin is not None
    running.stdin.write(b"first\n")
    running.stdin.flush()
    assert lapwing("sub", topic, "c", "-n", "1", "--timeout", "20s", daemon=daemon).stdout == "first\n"
    running.send_signal(number)

    assert running.wait(60) == status  # although its input is still open
    running.communicate()


def test_a_file_is_published_by_line_or_whole(daemon: Daemon, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "messages"
    file.write_bytes(b"".join(b"%d\n" % number for number in range(30_000)))
    lapwing("pub", topic, "--file", str(file), daemon=daemon)
    lapwing("pub", topic, "--file", str(file), "--whole", daemon=daemon)

    newest = lapwing_json("peek", topic, "--count", "2", daemon=daemon)
    assert newest[0]["sequence"] == 29_999
    assert newest[0]["body"] == "29999"
    assert newest[1]["body"].startswith("0\n1\n2\n")


def test_the_messages_of_a_key_are_shown(daemon: Daemon, topic: str) -> None:
    for number, key in enumerate("aba"):
        lapwing("pub", topic, json.dumps({"n": number, "of": key}), "--header", f"key={key}", daemon=daemon)

    shown = lapwing_json("peek", topic, "--key", "a", daemon=daemon)
    inside = lapwing_json("peek", topic, "--key", "b", "--key-from", "json:/of", "--from", "0", daemon=daemon)
    assert [message["sequence"] for message in shown] == [0, 2]
    assert [message["sequence"] for message in inside] == [1]
    assert "no messages of the key c" in lapwing("peek", topic, "--key", "c", daemon=daemon).stderr


def test_headers_travel_with_a_message(daemon: Daemon, topic: str) -> None:
    lapwing("pub", topic, "body", "--header", "kind=test", "-H", "empty=", daemon=daemon)

    assert lapwing_json("peek", topic, daemon=daemon)[0]["headers"] == {"kind": "test", "empty": ""}
    message = lapwing("sub", topic, "c", "--count", "1", "--json", daemon=daemon).stdout
    assert json.loads(message)["headers"] == {"kind": "test", "empty": ""}
    assert "lower-case" in lapwing("pub", topic, "x", "--header", "Kind=x", daemon=daemon, code=2).stderr


def test_a_deferred_message_is_not_delivered_yet(daemon: Daemon, topic: str) -> None:
    lapwing("pub", topic, "later", "--defer", "10m", daemon=daemon)
    lapwing("pub", topic, "now", daemon=daemon)

    assert lapwing("sub", topic, "c", "--count", "1", daemon=daemon).stdout == "now\n"


def test_a_delay_that_nsqd_does_not_allow_names_the_flag_to_raise(daemon: Daemon, topic: str) -> None:
    for how in ((topic, "x"), (topic, "x", "-H", "a=b")):
        refused = lapwing("pub", *how, "--defer", "2h", daemon=daemon, code=1).stderr
        assert "--defer 2h is longer than" in refused
        assert "--max-defer=2h0m0s" in refused


def test_what_cannot_be_published_says_why(daemon: Daemon, topic: str, tmp_path: Path) -> None:
    assert "no such file" in lapwing("pub", topic, "--file", str(tmp_path / "x"), daemon=daemon, code=2).stderr.lower()
    assert "topic" in lapwing("pub", "no spaces please", "x", daemon=daemon, code=2).stderr.lower()
    assert "NAME=VALUE" in lapwing("pub", topic, "x", "--header", "nonsense", daemon=daemon, code=2).stderr
    assert "message is empty" in lapwing("pub", topic, "", daemon=daemon, code=2).stderr
    assert "message is empty" in process("pub", topic, "--whole", daemon=daemon, code=2).stderr
    assert "--whole is for stdin" in lapwing("pub", topic, "x", "--whole", daemon=daemon, code=2).stderr
    assert "127.0.0.1:1" in lapwing("pub", topic, "x", "--nsqd-tcp-address", "127.0.0.1:1", code=1).stderr


def test_sub_prints_and_finishes(daemon: Daemon, topic: str) -> None:
    lapwing("pub", topic, "one", "two", "three", daemon=daemon)

    assert lapwing("sub", topic, "c", "-n", "2", daemon=daemon).stdout == "one\ntwo\n"
    told = json.loads(lapwing("sub", topic, "c", "-n", "1", "--json", daemon=daemon).stdout)
    assert (told["body"], told["topic"], told["attempts"]) == ("three", topic, 1)
    assert lapwing("sub", topic, "c", "--timeout", "0.3s", daemon=daemon, code=1).stdout == ""


def test_a_channel_is_one_word_or_two(daemon: Daemon, topic: str) -> None:
    lapwing("pub", topic, "first", "second", daemon=daemon)

    assert lapwing("sub", f"{topic}/c", "-n", "1", "--timeout", "20s", daemon=daemon).stdout == "first\n"
    assert lapwing("sub", topic, "c", "-n", "1", "--timeout", "20s", daemon=daemon).stdout == "second\n"
    assert "expected TOPIC/CHANNEL" in lapwing("sub", topic, daemon=daemon, code=2).stderr
    assert "expected TOPIC/CHANNEL" in lapwing("sub", f"{topic}/c", "c", daemon=daemon, code=2).stderr


def test_what_cannot_be_printed_goes_back(daemon: Daemon, topic: str) -> None:
    lapwing("pub", topic, "one", daemon=daemon)
    with open("/dev/full", "wb") as full:
        done = subprocess.run([PROGRAM, "sub", topic, "c", "-n", "1"], env=environment(daemon), stdout=full,
                              stderr=subprocess.PIPE, text=True, timeout=30, check=False)

    assert done.returncode == 1
    assert done.stderr == "lapwing: [Errno 28] No space left on device\n"
    assert lapwing("sub", topic, "c", "-n", "1", "--timeout", "10s", daemon=daemon).stdout == "one\n"


def test_ctrl_c_ends_sub_and_nothing_is_left_in_flight(daemon: Daemon, topic: str) -> None:
    running = subprocess.Popen([PROGRAM, "sub", topic, "c"], env=environment(daemon), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None
    lapwing("pub", topic, "hello", daemon=daemon)

    assert running.stdout.readline() == "hello\n"
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    assert errors == ""
    (channel,) = lapwing_json("channels", topic, daemon=daemon)
    assert (channel["in_flight"], channel["depth"], channel["clients"]) == (0, 0, 0)


def test_tail_reads_the_past_and_then_follows(daemon: Daemon, topic: str) -> None:
    lapwing("pub", topic, "before", daemon=daemon)
    running = subprocess.Popen([PROGRAM, "tail", topic, "--since", "earliest", "--count", "2"],
                               env=environment(daemon), stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    first = running.stdout.readline()
    lapwing("pub", topic, "after", daemon=daemon)

    assert (first, running.stdout.readline()) == ("before\n", "after\n")
    assert running.wait(60) == 0
    running.stdout.close()
    assert lapwing_json("channels", topic, daemon=daemon) == []


def test_tail_waits_for_a_topic_that_is_not_there_yet(daemon: Daemon, topic: str) -> None:
    running = subprocess.Popen([PROGRAM, "tail", topic, "--count", "1"], env=environment(daemon),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    assert running.stdout is not None
    assert "waiting" in running.stderr.readline()
    lapwing("pub", topic, "the first", daemon=daemon)

    assert running.stdout.readline() == "the first\n"
    assert running.wait(60) == 0
    running.stdout.close()
    running.stderr.close()


def test_tail_without_following_shows_the_newest(daemon: Daemon, topic: str) -> None:
    lapwing("pub", topic, "one", "two", "three", daemon=daemon)

    assert lapwing("tail", topic, "--last", "2", "--no-follow", daemon=daemon).stdout == "two\nthree\n"
    shown = lapwing("tail", topic, "--last", "1", "--no-follow", "--details", daemon=daemon).stdout
    assert shown.startswith("2  20")
    assert shown.endswith("  three\n")


def test_a_reader_that_has_seen_enough_is_no_trouble(daemon: Daemon, topic: str) -> None:
    lapwing("pub", topic, *(str(number) for number in range(2000)), daemon=daemon)
    for command in (f"tail {topic} --since earliest", f"sub {topic} c"):
        done = subprocess.run(f"{PROGRAM} {command} | head -n 1", shell=True, env=environment(daemon),
                              capture_output=True, text=True, check=True, timeout=30)

        assert (done.stdout, done.stderr) == ("0\n", "")


def test_a_reader_that_ends_while_nothing_comes_ends_the_command(daemon: Daemon, topic: str) -> None:
    lapwing("pub", topic, "only", daemon=daemon)
    for command in (["tail", topic, "--since", "earliest"], ["sub", topic, "c"]):
        with subprocess.Popen([PROGRAM, *command], env=environment(daemon), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as running:  # fmt: skip
            assert running.stdout is not None
            assert running.stderr is not None
            try:
                assert running.stdout.readline() == b"only\n"
                running.stdout.close()

                assert running.wait(60) == 1
                assert running.stderr.read() == b""
            finally:
                running.kill()


def test_tail_of_a_plain_nsq_server_goes_through_a_channel(daemon: Daemon, topic: str) -> None:
    with urlopen(f"{daemon.url}/info") as answer:
        info = answer.read()

    class PlainNsq(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/info"
            body = info if known else b'{"message":"NOT_FOUND"}'
            self.send_response(200 if known else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), PlainNsq) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = ("--nsqd-http-address", f"127.0.0.1:{server.server_port}")
        assert "plain NSQ server" in lapwing("tail", topic, "--since", "1h", *address, code=1).stderr

        running = subprocess.Popen([PROGRAM, "tail", topic, "--count", "1", *address], env=environment(),
                                   stdout=subprocess.PIPE, text=True)
        assert running.stdout is not None
        until(lambda: _consumed(daemon, topic), seconds=60, what="the ephemeral channel")
        lapwing("pub", topic, "hello", daemon=daemon)

        assert running.stdout.readline() == "hello\n"
        assert running.wait(60) == 0
        running.stdout.close()
        server.shutdown()


def _consumed(daemon: Daemon, topic: str) -> bool:
    return any(channel["clients"] for channel in lapwing_json("channels", daemon=daemon) if channel["topic"] == topic)


def test_a_topic_that_is_not_there_is_named_with_where_to_look(daemon: Daemon) -> None:
    peeked = lapwing("peek", "ordres", daemon=daemon, code=1).stderr
    listed = lapwing("channels", "orders/billing", "--nsqd-http-address", daemon.http, code=2).stderr

    assert "no topic 'ordres'" in peeked
    assert "`lapwing topics` lists them" in peeked
    assert "orders/billing is a channel: give the topic, orders" in listed


def test_peek_consumes_nothing(daemon: Daemon, topic: str) -> None:
    lapwing("pub", topic, *(str(number) for number in range(20)), daemon=daemon)

    assert [message["sequence"] for message in lapwing_json("peek", topic, "-n", "3", daemon=daemon)] == [17, 18, 19]
    found = lapwing_json("peek", topic, "--from", "5", "-n", "2", daemon=daemon)
    assert [message["body"] for message in found] == ["5", "6"]
    assert len(lapwing_json("peek", topic, "--since", "1h", "-n", "100", daemon=daemon)) == 20
    assert lapwing("peek", topic, "--from", "19", "--bodies", daemon=daemon).stdout == "19\n"
    assert lapwing("sub", topic, "c", "-n", "1", daemon=daemon).stdout == "0\n"


def test_entries_of_redis_clients_are_shown_with_their_fields(daemon: Daemon, topic: str) -> None:
    entry = b"*4\r\n$4\r\nname\r\n$4\r\nSara\r\n$4\r\nname\r\n$3\r\nAnn\r\n"
    with urlopen(f"{daemon.url}/pub?topic={topic}", data=entry, timeout=60):
        pass

    shown = '{"name": ["Sara", "Ann"]}'
    assert lapwing("peek", topic, daemon=daemon).stdout.endswith(f"  {shown}\n")
    assert process("peek", topic, "--bodies", daemon=daemon).stdout == entry.decode() + "\n"
    (found,) = lapwing_json("peek", topic, daemon=daemon)
    assert found["fields"] == {"name": ["Sara", "Ann"]}
    assert lapwing("tail", topic, "--last", "1", "--no-follow", daemon=daemon).stdout == f"{shown}\n"
    assert lapwing("sub", topic, "c", "-n", "1", "--timeout", "20s", daemon=daemon).stdout == f"{shown}\n"


def test_peek_names_what_is_wrong(daemon: Daemon, topic: str) -> None:
    assert f"no topic '{topic}'" in lapwing("peek", topic, daemon=daemon, code=1).stderr
    lapwing("pub", topic, "x", daemon=daemon)
    assert "not both" in lapwing("peek", topic, "--from", "1", "--since", "1h", daemon=daemon, code=2).stderr
    assert "write 10m" in lapwing("peek", topic, "--since", "yesterday", daemon=daemon, code=2).stderr
    assert "no daemon answered" in lapwing("peek", topic, "--nsqd-http-address", "127.0.0.1:1", code=1).stderr


def test_bytes_that_are_no_text_come_as_base64(daemon: Daemon, topic: str) -> None:
    process("pub", topic, "--whole", daemon=daemon, stdin=b"\xff\x00\n")

    (message,) = lapwing_json("peek", topic, daemon=daemon)
    assert (message["body"], message["body_base64"]) == (None, "/wAK")
