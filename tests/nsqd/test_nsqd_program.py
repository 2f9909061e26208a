"""nsqd's flags, its config file, and what it says when it cannot start."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rawtalk import Raw, get

import daemons

# fmt: off
DEFAULTS = {  # every flag of NSQ's nsqd, as --help shows its default
    "config": '""', "version": "false", "log-level": "info", "log-prefix": '"[nsqd] "', "verbose": "false",
    "node-id": "a hash of the host name", "worker-id": "false",
    "tcp-address": '"0.0.0.0:4150"', "http-address": '"0.0.0.0:4151"', "https-address": '"0.0.0.0:4152"',
    "broadcast-address": "the host name", "broadcast-tcp-port": "0", "broadcast-http-port": "0",
    "lookupd-tcp-address": None, "auth-http-address": None, "auth-http-request-method": '"get"',
    "http-client-connect-timeout": "2s", "http-client-request-timeout": "5s",
    "topology-region": '""', "topology-zone": '""', "enable-experiment": None,
    "data-path": "the current directory", "mem-queue-size": "10000", "max-bytes-per-file": "104857600",
    "sync-every": "2500", "sync-timeout": "2s", "queue-scan-worker-pool-max": "4", "queue-scan-selection-count": "20",
    "msg-timeout": "1m0s", "max-msg-timeout": "15m0s", "max-msg-size": "1048576", "max-body-size": "5242880",
    "max-req-timeout": "1h0m0s", "max-heartbeat-interval": "1m0s", "max-rdy-count": "2500",
    "max-output-buffer-size": "65536", "max-output-buffer-timeout": "30s", "min-output-buffer-timeout": "25ms",
    "output-buffer-timeout": "250ms", "max-channel-consumers": "0",
    "statsd-address": '""', "statsd-prefix": '"nsq.%s"', "statsd-interval": "1m0s", "statsd-mem-stats": "true",
    "statsd-udp-packet-size": "508", "statsd-exclude-ephemeral": "false",
    "e2e-processing-latency-percentile": None, "e2e-processing-latency-window-time": "10m0s",
    "tls-cert": '""', "tls-key": '""', "tls-client-auth-policy": '""', "tls-root-ca-file": '""',
    "tls-required": "false", "tls-min-version": "tls1.2",
    "deflate": "true", "max-deflate-level": "6", "snappy": "true",
}
# fmt: on


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*daemons.program("nsqd"), *flags], capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_every_flag_of_nsq_with_its_default(flag: str) -> None:
    told = run(flag)
    shown = {}
    for name, text in re.findall(r"^  -(\S+).*\n\s+(.*)$", told.stderr, re.MULTILINE):
        default = re.search(r"\(default (.*)\)$", text)
        shown[name] = default[1] if default else None

    assert told.returncode == 0
    assert told.stdout == ""
    assert {name: shown.get(name, "not there") for name in DEFAULTS} == DEFAULTS


def test_the_version_is_one_line() -> None:
    told = run("--version")

    assert told.returncode == 0
    assert re.fullmatch(r"nsqd v1\.3\.0 \(built w/python3\.\d+\.\d+\S*-(compiled|pure)\)\n", told.stdout)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--no-such-flag"], "flag provided but not defined: -no-such-flag"),
        (["--msg-timeout=5"], 'invalid value "5" for flag -msg-timeout'),
        (["--worker-id=5"], 'invalid boolean value "5" for flag -worker-id'),
    ],
)
def test_a_flag_that_is_none_ends_in_usage_and_status_2(flags: list[str], complaint: str) -> None:
    told = run(*flags)

    assert told.returncode == 2
    assert complaint in told.stderr
    assert "Usage of nsqd:" in told.stderr


def test_what_cannot_work_is_refused_at_the_start_in_one_line(tmp_path: Path) -> None:
    cases = {
        ("--data-path=/nowhere/at/all",): "failed to lock data-path: ",
        ("--max-deflate-level=0",): "--max-deflate-level must be [1,9]",
        ("--max-deflate-level=10",): "--max-deflate-level must be [1,9]",
        ("--node-id=1024",): "--node-id must be [0,1024)",
        ("--node-id=-1",): "--node-id must be [0,1024)",
        ("--tls-cert=/nowhere", "--tls-key=/nowhere"): "failed to build TLS config - [Errno 2] No such file",
        ("--tls-cert=/dev/null",): "failed to build TLS config - a certificate and its key belong together",
        ("--tls-cert=/dev/null", "--tls-key=/dev/null"): "failed to build TLS config - /dev/null and /dev/null: ",
        ("--tls-required",): "cannot require TLS client connections without TLS key and cert",
        ("--tls-client-auth-policy=require",): "cannot require TLS client connections without TLS key and cert",
        ("--auth-http-request-method=put",): "--auth-http-request-method must be post or get",
        ("--e2e-processing-latency-percentile=1.5",): "invalid E2E processing latency percentile: 1.5",
        ("--sync-timeout=0",): "--sync-timeout must be above 0",
        ("--checkpoint-interval=-1s",): "--checkpoint-interval must be above 0",
        ("--queue-scan-selection-count=0",): "--queue-scan-selection-count must be above 0",
        ("--tcp-address=127.0.0.1:99999",): "listen (127.0.0.1:99999) failed - ",
    }
    found = {}
    for number, flags in enumerate(cases):
        data_path = tmp_path / str(number)
        data_path.mkdir()
        doors = ("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", f"--data-path={data_path}")
        status, said = daemons.failed_start([*daemons.program("nsqd"), *doors, *flags])
        assert status == 1, (flags, said)
        found[flags] = said.partition("FATAL: failed to instantiate nsqd - ")[2]

    assert {flags: text[: len(cases[flags])] for flags, text in found.items()} == cases
    assert all(text.count("\n") == 1 for text in found.values())


def test_a_flag_beats_the_config_file_and_that_beats_the_default(tmp_path: Path) -> None:
    config = tmp_path / "nsqd.toml"
    config.write_text(
        'max_rdy_count = 77\nmsg_timeout = "7s"\nmax_msg_timeout = 70000\nid = 5\nunknown = 1\n'
        'nsqlookupd_tcp_addresses = ["127.0.0.1:1"]\nlog_level = "warn"\n'
    )
    with daemons.nsqd(f"--config={config}", "--msg-timeout=9s", "--log-level=info") as nsqd:
        shown = {
            key: json.loads(get(nsqd, f"/config/{key}"))
            for key in ("max_rdy_count", "msg_timeout", "max_msg_timeout", "id", "nsqlookupd_tcp_addresses")
        }
        shown["max_msg_size"] = json.loads(get(nsqd, "/config/max_msg_size"))

    assert shown == {
        "max_rdy_count": 77,
        "msg_timeout": 9_000_000_000,
        "max_msg_timeout": 70_000_000_000,
        "id": 5,
        "nsqlookupd_tcp_addresses": ["127.0.0.1:1"],
        "max_msg_size": 1048576,
    }


@pytest.mark.parametrize("content", ["max_rdy_count = 1.5", "max_rdy_count", None])
def test_a_config_file_that_cannot_be_used_is_fatal(tmp_path: Path, content: str | None) -> None:
    config = tmp_path / "nsqd.toml"
    if content is not None:
        config.write_text(content)
    doors = ("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", f"--data-path={tmp_path}")
    told = run(f"--config={config}", *doors)

    assert told.returncode == 1
    assert told.stderr
    assert "Traceback" not in told.stderr


def test_disk_queues_of_nsq_are_named_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "orders.diskqueue.meta.dat").write_text("12\n0,0\n0,480\n")
    with daemons.start_nsqd(tmp_path) as daemon:
        daemon.stop()

    assert "WARNING: 12 messages in disk queues of NSQ (orders) are not delivered" in daemon.stderr
    assert "lapwing import-nsqd" in daemon.stderr


def test_a_refused_command_is_logged_with_the_client(tmp_path: Path) -> None:
    with daemons.start_nsqd(tmp_path) as daemon, Raw(daemon) as raw:
        host, port = raw.socket.getsockname()
        raw.send(b"PUB bad!name\n")
        refused = raw.error()
        daemon.stop()

    assert f"ERROR: client({host}:{port}) - {refused}" in daemon.stderr
    assert daemon.stderr.count("ERROR") == 1


RARELY_NEEDED = (  # loaded with the first use, or by the flag that needs it
    "datetime", "ipaddress", "stringprep", "urllib.parse", "lapwing.net.client.asynchronous", "lapwing.nsqd.doors.auth",
    "lapwing.nsqd.http.authorization", "lapwing.nsqd.doors.redis",
)  # fmt: skip

START = """
import asyncio, sys
from lapwing.broker.settings.options import Options
from lapwing.net.logs import Level, Log
from lapwing.nsqd.daemon import Daemon

async def main(rarely_needed):
    options = Options(data_path=sys.argv[1], tcp_address="127.0.0.1:0", http_address="127.0.0.1:0")
    daemon = Daemon(options, Log("", Level.FATAL, 2))
    await daemon.start()
    print(*(name for name in rarely_needed if name in sys.modules))
    await daemon.stop()

asyncio.run(main(sys.argv[2:]))
"""


def loaded_by_a_start(data_path: Path, *names: str) -> list[str]:
    """Which of these modules the start of a plain nsqd loads."""
    told = subprocess.run(
        [sys.executable, "-c", START, str(data_path), *names],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert told.stderr == ""
    return told.stdout.split()


def test_a_plain_start_loads_nothing_that_is_rarely_needed(tmp_path: Path) -> None:
    assert loaded_by_a_start(tmp_path, "lapwing.nsqd.doors.nsq", *RARELY_NEEDED) == ["lapwing.nsqd.doors.nsq"]


def test_few_descriptors_are_enough_for_many_topics(tmp_path: Path) -> None:
    flags = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", f"--data-path={tmp_path}"]
    limited = ["sh", "-c", 'ulimit -n 64; exec "$0" "$@"', *daemons.program("nsqd"), *flags]
    daemon = daemons.Daemon(limited, doors=("TCP", "HTTP"))
    try:
        with Raw(daemon) as raw:
            for number in range(100):
                raw.ok(b"PUB few%d\n\0\0\0\1x" % number)
        assert len(json.loads(get(daemon, "/stats?format=json"))["topics"]) == 100
    finally:
        daemon.kill()
