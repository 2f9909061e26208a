"""The program: flags, config file, log lines, signals, exit statuses."""

import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from lookupclient import IDENTITY, Peer, get, identify

import daemons
from lapwing.cli import flags
from lapwing.lookup.options import LookupOptions


def run(*arguments):
    return subprocess.run([*daemons.program("nsqlookupd"), *arguments], capture_output=True, text=True, timeout=30)


def test_version():
    done = run("--version")

    assert done.returncode == 0
    assert re.fullmatch(r"nsqlookupd v1\.3\.0 \(built w/[a-z0-9.-]+\)\n", done.stdout)


def test_help_goes_to_stderr_and_is_no_failure():
    done = run("-help")

    assert (done.returncode, done.stdout) == (0, "")
    for flag in ("broadcast-address", "config", "http-address", "inactive-producer-timeout", "log-level", "log-prefix",
                 "tcp-address", "tombstone-lifetime", "verbose", "version"):  # fmt: skip
        assert f"\n  -{flag}" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--nope"], 2, "flag provided but not defined: -nope"),
        (["--tombstone-lifetime=45"], 2, 'invalid value "45" for flag -tombstone-lifetime'),
        (["--config=/does/not/exist"], 1, "failed to load config file"),
        (["--http-address=not-an-address", "--tcp-address=127.0.0.1:0"], 1, "failed"),
    ],
)
def test_exit_statuses(arguments, status, said):
    done = run(*arguments)

    assert done.returncode == status
    assert said in done.stderr


def test_an_address_in_use_ends_it_with_1():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("--tcp-address=127.0.0.1:0", f"--http-address=127.0.0.1:{taken.getsockname()[1]}")

    assert done.returncode == 1
    assert re.search(r"FATAL: .*listen \(127\.0\.0\.1:\d+\) failed - .*in use", done.stderr)


def test_defaults_are_those_of_nsq():
    options = flags.parse(LookupOptions, []).options

    assert (options.http_address, options.tcp_address) == ("0.0.0.0:4161", "0.0.0.0:4160")
    assert (options.inactive_producer_timeout, options.tombstone_lifetime) == (300_000_000_000, 45_000_000_000)
    assert (options.broadcast_address, options.log_prefix) == (os.uname().nodename, "[nsqlookupd] ")


def test_config_keys_are_flag_names_with_underscores(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text('tombstone_lifetime = 500\ninactive_producer_timeout = "2s"\nlog_prefix = "x "\nunknown = 1\n')
    options = flags.parse(LookupOptions, ["-config", str(file), "-log-prefix", "y "]).options

    assert (options.tombstone_lifetime, options.inactive_producer_timeout) == (500_000_000, 2_000_000_000)
    assert options.log_prefix == "y "


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_at_once_with_its_connections(number):
    daemon = daemons.start_nsqlookupd()
    try:
        with Peer(daemon.tcp) as peer:
            peer.identify()
            daemon.process.send_signal(number)
            assert peer.ended()
            assert daemon.process.wait(60) == 0
    finally:
        daemon.kill()


def test_log_lines_and_levels():
    with daemons.start_nsqlookupd("--log-prefix=here: ") as daemon:
        get(daemon.http, "/ping")
        daemon.stop()
        first = daemon.lines[0]
        stamp = r"here: \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} INFO: "
        assert re.match(stamp + r"nsqlookupd v1\.3\.0", first)
        assert any(re.match(stamp + r"200 GET /ping \(127\.0\.0\.1:\d+\) \S+", line) for line in daemon.lines)
    quiet = subprocess.Popen(
        [
            *daemons.program("nsqlookupd"),
            "--tcp-address=127.0.0.1:0",
            "--http-address=127.0.0.1:0",
            "--log-level=ERROR",
        ],
        stderr=subprocess.PIPE,
    )
    try:
        quiet.wait(0.5)
    except subprocess.TimeoutExpired:
        quiet.terminate()
    assert quiet.communicate(timeout=60)[1] == b""


def test_a_restarted_one_knows_nothing_until_it_is_told_again():
    daemon = daemons.start_nsqlookupd()
    try:
        with Peer(daemon.tcp) as peer:
            peer.ask(identify(IDENTITY))
            peer.ask(b"REGISTER t c\n")
        daemon.kill()
        daemon.restart()
        assert get(daemon.http, "/topics") == {"topics": []}
    finally:
        daemon.kill()


def test_the_documented_settings_are_the_real_ones():
    page = Path(__file__).parents[2] / "docs" / "reference" / "discovery.md"

    assert flags.table(LookupOptions) in page.read_text()
