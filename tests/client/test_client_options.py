"""ClientSettings: names, ranges, texts."""

import dataclasses
import typing

import pytest

from lapwing.client import address
from lapwing.client.address import Address
from lapwing.client.options import NSQ_NAMES, ClientOptions, ClientSettings, parse_option
from lapwing.errors import ConfigError


def test_every_option_is_a_keyword_argument_of_the_same_type():
    hints = typing.get_type_hints(ClientSettings)

    ours = {name: kind for name, kind in hints.items() if name not in NSQ_NAMES}
    assert ours == typing.get_type_hints(ClientOptions)
    assert all(hints[name] == hints[of] for name, (of, _) in NSQ_NAMES.items())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max_attempts,7", ("max_attempts", 7)),
        ("max-attempts,7", ("max_attempts", 7)),
        ("lookupd_poll_interval,1.5s", ("lookupd_poll_interval", 1.5)),
        ("dial_timeout,250ms", ("dial_timeout", 0.25)),
        ("dial_timeout,250", ("dial_timeout", 0.25)),
        ("output_buffer_timeout,-1", ("output_buffer_timeout", -0.001)),
        ("msg_timeout,1m30s", ("msg_timeout", 90.0)),
        ("snappy", ("snappy", True)),
        ("tls_v1,false", ("tls_v1", False)),
        ("lookupd_poll_jitter,0.5", ("lookupd_poll_jitter", 0.5)),
        ("user_agent,me/1,2", ("user_agent", "me/1,2")),
        ("tls_root_ca_file,ca.pem", ("tls_root_ca_file", "ca.pem")),
    ],
)
def test_options_are_read_from_text(text, expected):
    assert parse_option(text) == expected


@pytest.mark.parametrize("text", ["no_such_thing,1", "max_attempts,many", "dial_timeout,soon", "snappy,maybe", ""])
def test_text_that_is_no_option_is_refused(text):
    with pytest.raises(ConfigError):
        parse_option(text)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_attempts": 70_000},
        {"max_in_flight": -1},
        {"sample_rate": 100},
        {"read_timeout": 0.01},
        {"lookupd_poll_jitter": 1.5},
        {"heartbeat_interval": 61.0},
        {"backoff_strategy": "often"},
        {"deflate_level": 0},
        {"tls_min_version": "tls9"},
        {"snappy": True, "deflate": True},
        {"publish_timeout": float("nan")},
        {"colour": "blue"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_what_is_out_of_range_is_refused_by_name(settings):
    with pytest.raises(ConfigError) as caught:
        ClientOptions().but(**settings)

    assert next(iter(settings)) in str(caught.value)


def test_the_identity_says_what_nsqd_wants_in_milliseconds():
    options = ClientOptions(client_id="me", hostname="me.example", heartbeat_interval=5.0, output_buffer_timeout=-1)
    identity = options.identity()

    assert identity["client_id"] == identity["short_id"] == "me"
    assert identity["hostname"] == identity["long_id"] == "me.example"
    assert identity["heartbeat_interval"] == 5000
    assert identity["output_buffer_timeout"] == -1
    assert identity["msg_timeout"] == 0
    assert identity["feature_negotiation"] is True
    assert identity["user_agent"].startswith("lapwing/")


def test_changed_options_leave_the_others_alone():
    options = ClientOptions(max_in_flight=7)

    assert options.but(snappy=True) == dataclasses.replace(options, snappy=True)


def test_tls_files_that_are_not_there_are_named():
    with pytest.raises(ConfigError, match=r"nowhere\.pem"):
        ClientOptions(tls=True, tls_ca_file="nowhere.pem").tls_context()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:4150", Address("127.0.0.1", 4150)),
        ("localhost:1", Address("localhost", 1)),
        ("[::1]:4150", Address("::1", 4150)),
        (":4150", Address("127.0.0.1", 4150)),
        ("run/nsqd.sock", Address("run/nsqd.sock", 0)),
        ("unix:nsqd.sock", Address("nsqd.sock", 0)),
        ("unix:///run/nsqd.sock", Address("/run/nsqd.sock", 0)),
    ],
)
def test_addresses_are_hosts_with_ports_or_socket_paths(text, expected):
    assert address.parse(text) == expected


@pytest.mark.parametrize("text", ["localhost", "localhost:", "localhost:http", "localhost:70000", "::1:4150"])
def test_an_address_without_a_port_is_refused(text):
    with pytest.raises(ConfigError):
        address.parse(text)


def test_an_address_reads_as_it_was_given():
    assert [str(address.parse(text)) for text in ("h:1", "[::1]:2", "a/b")] == ["h:1", "[::1]:2", "a/b"]
