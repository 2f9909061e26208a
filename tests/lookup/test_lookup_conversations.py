"""The discovery protocol with a real nsqlookupd, read as a transcript: send, expect."""

import json
import os
import socket
import struct

import pytest
from lookupclient import IDENTITY, Peer, call, get, identify

import daemons


@pytest.fixture(scope="module")
def nsqlookupd():
    with daemons.start_nsqlookupd("--tombstone-lifetime=300ms") as daemon:
        yield daemon


@pytest.fixture
def peer(nsqlookupd):
    with Peer(nsqlookupd.tcp) as connected:
        yield connected


def test_the_documented_bytes(nsqlookupd, peer):
    answer = peer.identify()

    expected = {
        "broadcast_address": "127.0.0.1",
        "hostname": os.uname().nodename,
        "http_port": nsqlookupd.http_port,
        "tcp_port": nsqlookupd.tcp_port,
        "version": "1.3.0",
    }
    assert answer == json.dumps(expected, separators=(",", ":")).encode()
    assert peer.ask(b"REGISTER t c\n") == b"OK"
    assert peer.ask(b"PING\n") == b"OK"


@pytest.mark.parametrize("magic", [b"  V2", b"GET ", b"\0\0\0\0"])
def test_another_magic_is_refused(nsqlookupd, magic):
    with Peer(nsqlookupd.tcp, magic) as peer:
        assert peer.answer() == b"E_BAD_PROTOCOL"
        assert peer.ended()


def test_a_magic_cut_short_is_not_answered(nsqlookupd):
    with Peer(nsqlookupd.tcp, b"  V") as peer:
        peer.socket.shutdown(socket.SHUT_WR)
        assert peer.ended()


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b"HELLO world\n", b"E_INVALID invalid command HELLO"),
        (b"\n", b"E_INVALID invalid command "),
        (b"ping\n", b"E_INVALID invalid command ping"),
        (b"REGISTER t\n", b"E_INVALID client must IDENTIFY"),
        (b"UNREGISTER t\n", b"E_INVALID client must IDENTIFY"),
    ],
)
def test_errors_before_identify(peer, line, answer):
    assert peer.ask(line) == answer
    assert peer.ended()


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (identify(IDENTITY), b"E_INVALID cannot IDENTIFY again"),
        (b"REGISTER\n", b"E_INVALID REGISTER insufficient number of params"),
        (b"UNREGISTER\n", b"E_INVALID UNREGISTER insufficient number of params"),
        (b"REGISTER bad!\n", b"E_BAD_TOPIC REGISTER topic name 'bad!' is not valid"),
        (b"UNREGISTER bad!\n", b"E_BAD_TOPIC UNREGISTER topic name 'bad!' is not valid"),
        (b"REGISTER t bad!\n", b"E_BAD_CHANNEL REGISTER channel name 'bad!' is not valid"),
        (b"UNREGISTER t bad!\n", b"E_BAD_CHANNEL UNREGISTER channel name 'bad!' is not valid"),
        (b"REGISTER " + b"x" * 65 + b"\n", b"E_BAD_TOPIC REGISTER topic name '" + b"x" * 65 + b"' is not valid"),
    ],
)
def test_errors_after_identify(peer, line, answer):
    peer.identify()

    assert peer.ask(line) == answer
    assert peer.ended()


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (identify(b""), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (identify(b"nonsense"), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (identify({**IDENTITY, "tcp_port": "4150"}), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (identify({**IDENTITY, "tcp_port": 0}), b"E_BAD_BODY IDENTIFY missing fields"),
        (identify({**IDENTITY, "http_port": 0}), b"E_BAD_BODY IDENTIFY missing fields"),
        (identify({**IDENTITY, "version": ""}), b"E_BAD_BODY IDENTIFY missing fields"),
        (identify({**IDENTITY, "broadcast_address": ""}), b"E_BAD_BODY IDENTIFY missing fields"),
        (identify({}), b"E_BAD_BODY IDENTIFY missing fields"),
    ],
)
def test_identify_that_does_not_identify(peer, sent, answer):
    assert peer.ask(sent) == answer
    assert peer.ended()


@pytest.mark.parametrize("size", [-1, -(2**31), 2**31 - 1])
def test_an_impossible_length_is_an_error_and_the_daemon_lives(nsqlookupd, peer, size):
    assert peer.ask(b"IDENTIFY\n" + struct.pack(">i", size)).startswith(b"E_BAD_BODY")
    assert peer.ended()
    assert get(nsqlookupd.http, "/ping") == "OK"


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"IDENTIFY\n\0\0", b"E_BAD_BODY IDENTIFY failed to read body size"),
        (b"IDENTIFY\n\0\0\0\x09{}", b"E_BAD_BODY IDENTIFY failed to read body"),
    ],
)
def test_identify_cut_short(peer, sent, answer):
    peer.send(sent)
    peer.socket.shutdown(socket.SHUT_WR)

    assert peer.answer() == answer
    assert peer.ended()


def test_white_space_and_surplus_parameters_do_not_matter(nsqlookupd, peer):
    assert peer.ask(b"PING\r\n") == b"OK"
    peer.identify()
    assert peer.ask(b"  REGISTER spaced c more and more \r\n") == b"OK"
    assert peer.ask(b"REGISTER spaced2  c\n") == b"OK"

    assert get(nsqlookupd.http, "/channels?topic=spaced") == {"channels": ["c"]}
    assert get(nsqlookupd.http, "/channels?topic=spaced2") == {"channels": []}


def test_a_conversation_one_byte_at_a_time_and_all_at_once(nsqlookupd):
    talk = b"PING\n" + identify(IDENTITY) + b"REGISTER bytewise c\nPING\nUNREGISTER bytewise c\nPING\nNO\nPING\n"
    expected = [b"OK", None, b"OK", b"OK", b"OK", b"OK", b"E_INVALID invalid command NO", b""]
    for size in (1, len(talk)):
        with Peer(nsqlookupd.tcp) as peer:
            peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for start in range(0, len(talk), size):
                try:
                    peer.send(talk[start : start + size])
                except OSError:
                    break  # it hung up at the bad command, which is right
            for answer in expected:
                found = peer.answer()
                assert answer is None or found == answer


def test_a_peer_that_does_not_take_its_answers_is_made_to_wait(nsqlookupd):
    def flood(peer):
        for _ in range(1000):
            peer.send(b"PING\n" * 50000)

    with Peer(nsqlookupd.tcp) as peer:
        peer.socket.settimeout(1)
        with pytest.raises(TimeoutError):
            flood(peer)

        assert get(nsqlookupd.http, "/ping") == "OK"


def test_a_line_without_end_is_cut_off(nsqlookupd, peer):
    def drone(peer):
        for _ in range(1000):
            peer.send(b"x" * 65536)

    with pytest.raises(OSError):
        drone(peer)

    assert get(nsqlookupd.http, "/ping") == "OK"


def test_lookup_tells_who_has_a_topic(nsqlookupd, peer):
    peer.identify(topology_zone="z", topology_region="r", remote_address="1.2.3.4:5", more=1)
    peer.ask(b"REGISTER who c1\n")
    answer = get(nsqlookupd.http, "/lookup?topic=who")

    assert answer["channels"] == ["c1"]
    assert [(key, value) for key, value in answer["producers"][0].items()] == [
        ("remote_address", peer.name),
        ("hostname", "a"),
        ("broadcast_address", "10.0.0.7"),
        ("tcp_port", 4150),
        ("http_port", 4151),
        ("version", "1.3.0"),
        ("topology_zone", "z"),
        ("topology_region", "r"),
    ]


def test_a_connection_that_ends_takes_its_producer_with_it(nsqlookupd):
    with Peer(nsqlookupd.tcp) as peer:
        peer.identify()
        peer.ask(b"REGISTER gone#ephemeral c#ephemeral\n")
    daemons.until(lambda: get(nsqlookupd.http, "/lookup?topic=gone%23ephemeral")["producers"] == [])

    assert get(nsqlookupd.http, "/channels?topic=gone%23ephemeral") == {"channels": ["c#ephemeral"]}


def test_nodes_and_tombstones(nsqlookupd, peer):
    peer.identify(broadcast_address="10.9.9.9")
    peer.ask(b"REGISTER buried\n")
    peer.ask(b"REGISTER alive\n")
    status, body = call(nsqlookupd.http, "POST", "/topic/tombstone?topic=buried&node=10.9.9.9:4151")
    assert (status, body) == (200, "")
    assert get(nsqlookupd.http, "/lookup?topic=alive")["producers"] != []
    [node] = [node for node in get(nsqlookupd.http, "/nodes")["producers"] if node["remote_address"] == peer.name]
    debug = get(nsqlookupd.http, "/debug")["topic:buried:"][0]

    assert set(node["topics"]) == {"buried", "alive"}
    assert list(node)[-2:] == ["tombstones", "topics"]
    assert debug["tombstoned"] is True
    daemons.until(lambda: get(nsqlookupd.http, "/lookup?topic=buried")["producers"] != [])
    assert get(nsqlookupd.http, "/debug")["topic:buried:"][0]["tombstoned"] is True


def test_debug_lists_every_place(nsqlookupd, peer):
    peer.identify()
    peer.ask(b"REGISTER debugged c\n")
    debug = get(nsqlookupd.http, "/debug")

    for key in ("client::", "topic:debugged:", "channel:debugged:c"):
        [place] = [place for place in debug[key] if place["id"] == peer.name]
        assert list(place) == [
            *("broadcast_address", "hostname", "http_port", "id", "last_update", "tcp_port"),
            *("tombstoned", "tombstoned_at", "topology_region", "topology_zone", "version"),
        ]
        assert (place["tombstoned"], place["tombstoned_at"]) == (False, -6795364578871345152)


def test_a_star_is_the_name_of_nothing(nsqlookupd, peer):
    peer.identify()
    peer.ask(b"REGISTER starred c\n")

    assert call(nsqlookupd.http, "GET", "/lookup?topic=*") == (404, {"message": "TOPIC_NOT_FOUND"})
    assert get(nsqlookupd.http, "/channels?topic=*") == {"channels": []}
    assert call(nsqlookupd.http, "POST", "/topic/delete?topic=*")[0] == 200
    assert get(nsqlookupd.http, "/lookup?topic=starred")["producers"] != []


def test_producers_tells_how_long_ago_each_was_heard_of(nsqlookupd, peer):
    peer.identify()
    peer.ask(b"REGISTER heard\n")
    first = get(nsqlookupd.http, "/producers?topic=heard")["producers"]
    daemons.until(lambda: get(nsqlookupd.http, "/producers?topic=heard")["producers"][0]["heard_ms_ago"] >= 20)
    peer.ask(b"PING\n")
    second = get(nsqlookupd.http, "/producers?topic=heard")["producers"]

    assert [one["remote_address"] for one in first] == [peer.name]
    assert (first[0]["active"], first[0]["topics"], first[0]["tombstoned"]) == (True, ["heard"], [])
    assert second[0]["last_update"] > first[0]["last_update"]


def test_producers_lists_nodes_that_left_until_they_are_forgotten(nsqlookupd):
    with Peer(nsqlookupd.tcp) as leaving:
        leaving.identify(broadcast_address="10.9.9.9", http_port=4999)
        leaving.ask(b"REGISTER left\n")
    daemons.until(lambda: get(nsqlookupd.http, "/producers?topic=left")["departed"] != [])
    answer = get(nsqlookupd.http, "/producers?topic=left")

    assert answer["producers"] == []
    [node] = answer["departed"]
    assert (node["broadcast_address"], node["http_port"], node["topics"]) == ("10.9.9.9", 4999, ["left"])
    assert answer["started_ms_ago"] >= node["heard_ms_ago"] >= 0
    assert call(nsqlookupd.http, "POST", "/producer/forget?node=10.9.9.9:4999")[0] == 200
    assert get(nsqlookupd.http, "/producers?topic=left")["departed"] == []
    assert call(nsqlookupd.http, "POST", "/producer/forget?node=10.9.9.9:4999") == (404, {"message": "NODE_NOT_FOUND"})


def test_register_is_no_sign_of_life_but_ping_is():
    with daemons.start_nsqlookupd("--inactive-producer-timeout=400ms") as daemon, Peer(daemon.tcp) as peer:
        peer.identify()

        def seen():
            peer.ask(b"REGISTER t\n")
            return bool(get(daemon.http, "/lookup?topic=t")["producers"])

        daemons.until(lambda: not seen())
        assert get(daemon.http, "/nodes") == {"producers": []}
        assert get(daemon.http, "/producers")["producers"][0]["active"] is False
        daemons.until(lambda: peer.ask(b"PING\n") == b"OK" and seen(), what="a sign of life")


def test_metrics_count(nsqlookupd, peer):
    peer.identify()
    peer.ask(b"REGISTER metered c\n")
    get(nsqlookupd.http, "/lookup?topic=metered")
    text = get(nsqlookupd.http, "/metrics")

    values = dict(line.split() for line in text.splitlines() if not line.startswith("#"))
    assert float(values["lapwing_lookup_producers"]) >= 1
    assert float(values["lapwing_lookup_lookups_total"]) >= 1
    assert float(values["lapwing_lookup_http_requests_total"]) >= 1
    assert float(values["lapwing_lookup_answers_total"]) >= 2
    assert text.count("# HELP ") == text.count("# TYPE ") == len(values)


def test_profiler_pages_exist(nsqlookupd):
    for page in ("", "/cmdline", "/goroutine", "/heap", "/symbol", "/block", "/threadcreate", "/profile"):
        assert isinstance(get(nsqlookupd.http, f"/debug/pprof{page}"), str)
    assert call(nsqlookupd.http, "GET", "/debug/pprof/")[0] == 301
    assert call(nsqlookupd.http, "POST", "/debug/pprof/symbol")[0] == 200


def test_limits_that_an_operator_may_set():
    flags = ("--max-peers=1", "--max-http-connections=1", "--max-registrations=2")
    full = 503, {"message": "TOO_MANY_REGISTRATIONS"}
    with daemons.start_nsqlookupd(*flags) as daemon, Peer(daemon.tcp) as peer:
        peer.identify()
        assert peer.ask(b"REGISTER t c\n") == b"OK"
        with Peer(daemon.tcp) as second:
            assert second.ended()
        daemons.until(lambda: call(daemon.http, "POST", "/topic/create?topic=u") == full)
        assert peer.ask(b"REGISTER u\n") == b"E_REGISTER_FAILED registry is full (2 registrations)"
        assert peer.ended()
        with socket.create_connection(("127.0.0.1", daemon.http_port)):
            daemons.until(lambda: call(daemon.http, "GET", "/ping") == (503, "too many connections\n"))
        daemons.until(lambda: call(daemon.http, "GET", "/ping")[0] == 200)


def test_a_silent_peer_may_be_hung_up_on():
    with daemons.start_nsqlookupd("--peer-timeout=500ms") as daemon, Peer(daemon.tcp) as silent:
        assert silent.ended()


def test_all_topics_are_told_with_their_channels_when_asked_for():
    with daemons.start_nsqlookupd() as daemon:
        call(daemon.http, "POST", "/topic/create?topic=bare")
        for channel in ("c", "d"):
            call(daemon.http, "POST", f"/channel/create?topic=t&channel={channel}")
        answer = get(daemon.http, "/topics?channels=true")
        as_ever = get(daemon.http, "/topics?channels=false")

    assert sorted(answer) == ["channels", "topics"]
    assert {topic: sorted(channels) for topic, channels in answer["channels"].items()} == {"bare": [], "t": ["c", "d"]}
    assert sorted(as_ever["topics"]) == ["bare", "t"]
    assert list(as_ever) == ["topics"]


def test_one_nsqd_registers_no_more_than_it_may():
    with daemons.start_nsqlookupd("--max-registrations-per-peer=2") as daemon, Peer(daemon.tcp) as peer:
        peer.identify()
        assert peer.ask(b"REGISTER t c\n") == b"OK"
        refused = peer.ask(b"REGISTER u\n")

        assert refused.startswith(b"E_REGISTER_FAILED too many registrations of one nsqd (2 allowed")
        assert peer.ended()
