"""Go's flag syntax and the TOML file behind it, on settings made up for the purpose."""

from dataclasses import dataclass

import pytest

from lapwing.cli import flags
from lapwing.errors import ConfigError
from lapwing.net.options import (
    DURATION,
    FLOATS,
    INTEGER,
    LEVEL,
    STRINGS,
    TLS_REQUIRED,
    TLS_VERSION,
    option,
    settings,
    value_of,
)

SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Options:
    config: str = option("", "path to config file", key="")
    version: bool = option(False, "print version string", key="")
    tcp_address: str = option("0.0.0.0:4150", "where to listen")
    node_id: int = option(lambda: 7, "unique part", key="id", kind=INTEGER, shown="hash of the host name")
    deflate: bool = option(True, "allow deflate")
    msg_timeout: int = option("1m", "default message timeout", kind=DURATION)
    lookups: tuple[str, ...] = option(
        (), "lookupd peers", flag="lookupd-tcp-address", key="nsqlookupd_tcp_addresses", kind=STRINGS
    )
    percentiles: tuple[float, ...] = option((), "quantiles", flag="e2e-percentile", key="e2e_percentiles", kind=FLOATS)
    log_level: int = option("info", "how much to say", kind=LEVEL)
    tls_required: int = option("false", "insist on TLS", kind=TLS_REQUIRED)
    tls_min_version: int = option("tls1.0", "oldest TLS", kind=TLS_VERSION)


def parsed(*arguments: str) -> Options:
    return flags.parse(Options, arguments).options


@pytest.mark.parametrize(
    "written", [["-tcp-address=a:1"], ["--tcp-address=a:1"], ["-tcp-address", "a:1"], ["--tcp-address", "a:1"]]
)
def test_one_dash_or_two_and_the_value_behind_a_sign_or_a_space(written):
    assert parsed(*written).tcp_address == "a:1"


def test_a_boolean_takes_no_separate_value_and_parsing_stops_there():
    result = flags.parse(Options, ["--deflate", "false", "--node-id=1"])

    assert result.options.deflate is True
    assert result.options.node_id == 7
    assert result.rest == ["false", "--node-id=1"]


@pytest.mark.parametrize(
    ("word", "meaning"),
    [("1", True), ("t", True), ("TRUE", True), ("True", True), ("0", False), ("F", False), ("false", False)],
)
def test_words_of_booleans(word, meaning):
    assert parsed(f"--deflate={word}").deflate is meaning


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("10", 10),
        ("-3", -3),
        ("+3", 3),
        ("0x1F", 31),
        ("0o17", 15),
        ("017", 15),
        ("0b101", 5),
        ("1_000", 1000),
        ("0x_f", 15),
        ("0", 0),
    ],
)
def test_integers_in_all_notations(text, number):
    assert parsed("--node-id", text).node_id == number


@pytest.mark.parametrize("text", ["", "x", "1.5", "08", "1__0", "_1", "0x", " 1", "9223372036854775808", "\u0661"])
def test_what_is_no_integer(text):
    with pytest.raises(flags.FlagError, match="invalid value"):
        parsed(f"--node-id={text}")


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1m30s", 90 * SECOND),
        ("1.5h", 5400 * SECOND),
        (".5s", SECOND // 2),
        ("250ms", SECOND // 4),
        ("100us", 100_000),
        ("7ns", 7),
        ("0", 0),
        ("-1s", -SECOND),
    ],
)
def test_durations(text, nanoseconds):
    assert parsed("--msg-timeout", text).msg_timeout == nanoseconds


@pytest.mark.parametrize("text", ["", "1", "s", "1x", "1 s", ".s", "9999999999h"])
def test_what_is_no_duration(text):
    with pytest.raises(flags.FlagError):
        parsed(f"--msg-timeout={text}")


def test_lists_grow_with_every_flag():
    assert parsed("--lookupd-tcp-address=a:1", "--lookupd-tcp-address", "b:2").lookups == ("a:1", "b:2")


def test_float_lists_take_commas_and_are_kept_in_descending_order():
    assert parsed("--e2e-percentile=0.5,0.99", "--e2e-percentile=0.95").percentiles == (0.99, 0.95, 0.5)


def test_words_of_levels_and_tls():
    options = parsed("--log-level=WARN", "--tls-required", "--tls-min-version=TLS1.2")

    assert (options.log_level, options.tls_required, options.tls_min_version) == (3, 2, 771)
    assert parsed("--tls-required=tcp-https").tls_required == 1


@pytest.mark.parametrize("word", ["--log-level=warning", "--tls-min-version=ssl3.0", "--tls-required=maybe"])
def test_words_that_are_not_accepted(word):
    with pytest.raises(flags.FlagError):
        parsed(word)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--nope"], "flag provided but not defined: -nope"),
        (["--tcp-address"], "flag needs an argument: -tcp-address"),
        (["---x"], "bad flag syntax: ---x"),
        (["-=x"], "bad flag syntax: -=x"),
        (["--deflate=perhaps"], 'invalid boolean value "perhaps" for flag -deflate'),
    ],
)
def test_complaints(arguments, complaint):
    with pytest.raises(flags.FlagError) as caught:
        parsed(*arguments)

    assert str(caught.value).startswith(complaint)


def test_parsing_stops_at_two_dashes_and_at_one_alone():
    assert flags.parse(Options, ["--deflate", "--", "--nope"]).rest == ["--nope"]
    assert flags.parse(Options, ["-", "--nope"]).rest == ["-", "--nope"]


def test_the_last_of_several_wins_and_a_value_may_look_like_a_flag():
    assert parsed("--tcp-address=a:1", "--tcp-address=b:2").tcp_address == "b:2"
    assert parsed("--tcp-address", "--deflate").tcp_address == "--deflate"


def test_a_flag_beats_the_file_and_the_file_beats_the_default(tmp_path):
    file = tmp_path / "nsqd.cfg"
    file.write_text('tcp_address = "file:1"\nid = 3\nunknown = 1\n"msg-timeout" = "9s"\n')
    result = flags.parse(Options, [f"--config={file}", "--node-id=4"])

    assert (result.options.tcp_address, result.options.node_id) == ("file:1", 4)
    assert result.options.msg_timeout == 60 * SECOND
    assert result.given("tcp_address")
    assert result.given("node_id")
    assert not result.given("deflate")
    assert result.by_file == {"tcp_address", "node_id"}


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("msg_timeout = 1500", "msg_timeout", 1500 * 1_000_000),
        ('msg_timeout = "2s"', "msg_timeout", 2 * SECOND),
        ('id = "12"', "node_id", 12),
        ('deflate = "false"', "deflate", False),
        ("deflate = false", "deflate", False),
        ('nsqlookupd_tcp_addresses = ["a:1", "b:2"]', "lookups", ("a:1", "b:2")),
        ('nsqlookupd_tcp_addresses = "a:1,b:2"', "lookups", ("a:1", "b:2")),
        ("nsqlookupd_tcp_addresses = []", "lookups", ()),
        ("e2e_percentiles = [0.5, 1]", "percentiles", (1.0, 0.5)),
        ('e2e_percentiles = "0.5,0.99"', "percentiles", (0.99, 0.5)),
        ('log_level = "Debug"', "log_level", 1),
        ('tls_min_version = ""', "tls_min_version", 771),
        ("tls_required = true", "tls_required", 2),
        ('tls_required = "tcp-https"', "tls_required", 1),
    ],
)
def test_what_a_file_may_say(tmp_path, line, field, value):
    file = tmp_path / "c.toml"
    file.write_text(line)

    assert getattr(parsed(f"-config={file}"), field) == value


@pytest.mark.parametrize(
    "content",
    [
        "id = 1.5",
        "id = true",
        'msg_timeout = "2"',
        'log_level = "loud"',
        "tcp_address = 5",
        "deflate = 0",
        "nsqlookupd_tcp_addresses = [1]",
        'e2e_percentiles = ["x"]',
        "not toml",
    ],
)
def test_a_bad_value_in_the_file_is_no_flag_error(tmp_path, content):
    file = tmp_path / "c.toml"
    file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        parsed(f"-config={file}")

    assert not isinstance(caught.value, flags.FlagError)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["-h"], 0, "Usage of nsqd:"),
        (["--help"], 0, "Usage of nsqd:"),
        (["--nope"], 2, "flag provided but not defined: -nope\nUsage of nsqd:"),
        (["--config=/does/not/exist"], 1, "nsqd: failed to load config file /does/not/exist"),
    ],
)
def test_exit_statuses_and_what_stderr_says(capsys, arguments, status, said):
    with pytest.raises(SystemExit) as caught:
        flags.read(Options, "nsqd", arguments, example="nsqd --data-path=/var/lib/nsqd")

    assert caught.value.code == status
    assert capsys.readouterr().err.startswith(said)


def test_usage_names_every_flag_with_its_help_and_default():
    text = flags.usage(Options, "nsqd", example="nsqd --data-path=/tmp")

    for setting in settings(Options):
        assert f"  -{setting.flag}" in text
        assert setting.help in text
    assert "(default 1m0s)" in text
    assert '(default "0.0.0.0:4150")' in text
    assert "(default hash of the host name)" in text
    assert "Example:\n  nsqd --data-path=/tmp" in text


def test_the_configuration_api_answers_from_the_same_description():
    options = parsed("--lookupd-tcp-address=a:1", "--log-level=debug")

    assert value_of(options, "nsqlookupd_tcp_addresses") == ["a:1"]
    assert value_of(options, "msg_timeout") == 60 * SECOND
    assert value_of(options, "log_level") == 1
    assert value_of(options, "id") == 7
    for not_a_key in ("node_id", "config", "version", "nope"):
        with pytest.raises(KeyError):
            value_of(options, not_a_key)


def test_the_table_has_a_row_for_every_flag():
    rows = flags.table(Options).splitlines()

    assert len(rows) == 2 + len(settings(Options))
    assert "| `--msg-timeout` duration | `msg_timeout` | `1m0s` | default message timeout |" in rows
