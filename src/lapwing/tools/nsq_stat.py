"""nsq_stat: print a line per interval about a channel, summed over all nsqds."""

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from lapwing import names
from lapwing.client.cluster import join_address
from lapwing.client.http import CallFailed, DaemonHttp
from lapwing.net.options import DURATION, option
from lapwing.tools.program import Failure, Signals, check, check_addresses, first_of, run

HEADER: Final = (
    "------rate------+----------------depth----------------+--------------metadata---------------\n"
    "ingress  egress |   total     mem    disk inflt   def |     req     t-o         msgs clients\n"
)
HEADER_EVERY: Final = 25
UNLIMITED: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class NsqStatOptions:
    """The flags of nsq_stat."""

    channel: str = option("", "show the figures of this channel")
    count: int = option(UNLIMITED, "end after this many lines, 1 or more", shown="unlimited")
    http_client_connect_timeout: int = option("2s", "wait this long for an HTTP connection", kind=DURATION)
    http_client_request_timeout: int = option("5s", "wait this long for an HTTP answer", kind=DURATION)
    interval: int = option("2s", "poll and print this often", kind=DURATION)
    lookupd_http_address: tuple[str, ...] = option((), "find nsqds through this nsqlookupd (HTTP address)")
    nsqd_http_address: tuple[str, ...] = option((), "ask this nsqd (HTTP address)")
    topic: str = option("", "show the figures of a channel of this topic")
    version: bool = option(False, "print version string")


@dataclass(slots=True)
class Counts:
    """Counts of a channel, summed over nsqds; the names are those of `/stats`."""

    depth: int = 0
    backend_depth: int = 0
    in_flight_count: int = 0
    deferred_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    message_count: int = 0
    client_count: int = 0

    def add(self, channel: dict[str, Any]) -> None:
        for count in fields(self):
            setattr(self, count.name, getattr(self, count.name) + int(channel.get(count.name) or 0))


def line_of(now: Counts, before: Counts, interval: float) -> str:
    """Return the line for `now`, with rates since `before`, `interval` seconds earlier."""
    more = now.message_count - before.message_count
    ingress = int(more / interval)
    egress = int((more - (now.depth - before.depth)) / interval)
    return (
        f"{ingress:7d} {egress:7d} | {now.depth:7d} {now.depth - now.backend_depth:7d} {now.backend_depth:7d} "
        f"{now.in_flight_count:5d} {now.deferred_count:5d} | {now.requeue_count:7d} {now.timeout_count:7d} "
        f"{now.message_count:12d} {now.client_count:7d}\n"
    )


def watch(options: NsqStatOptions) -> int:
    """Print lines until `count` or a signal; return the exit status."""
    check(options.topic and options.channel, "--topic and --channel are required")
    check(names.valid(options.topic) and names.valid(options.channel), "--topic or --channel is not a valid name")
    check(options.interval > 0, "--interval should be positive")
    check(options.http_client_connect_timeout > 0, "--http-client-connect-timeout should be positive")
    check(options.http_client_request_timeout > 0, "--http-client-request-timeout should be positive")
    check(options.count > 0, "--count should be positive")
    check_addresses(options.nsqd_http_address, options.lookupd_http_address, nsqd_flag="--nsqd-http-address")
    for flag, addresses in (("nsqd", options.nsqd_http_address), ("lookupd", options.lookupd_http_address)):
        for address in addresses:
            text = f"--{flag}-http-address error - address should not contain scheme"
            check(not address.startswith("http"), text)
    return run(lambda signals: _watch(options, signals))


async def _watch(options: NsqStatOptions, signals: Signals) -> int:
    http = DaemonHttp(
        connect_timeout=options.http_client_connect_timeout / 1e9,
        request_timeout=options.http_client_request_timeout / 1e9,
        user_agent="nsq_stat",
        auth_secret=os.environ.get("LAPWING_AUTH_SECRET", ""),
    )
    try:
        await first_of(signals.stop.wait(), _print_lines(options, http))
    finally:
        await http.aclose()
    return 0


async def _print_lines(options: NsqStatOptions, http: DaemonHttp) -> None:
    interval = options.interval / 1e9
    loop = asyncio.get_running_loop()
    before: Counts | None = None
    poll = 0
    due = loop.time()
    while True:
        now = await _poll(options, http)
        if poll % HEADER_EVERY == 0:
            sys.stdout.write(HEADER)
        if before is not None:
            sys.stdout.write(line_of(now, before, interval))
        sys.stdout.flush()
        before = now
        due += interval
        await asyncio.sleep(max(0.0, due - loop.time()))
        if poll >= options.count:
            return
        poll += 1


async def _poll(options: NsqStatOptions, http: DaemonHttp) -> Counts:
    try:
        nsqds = await _nsqds(options, http)
    except CallFailed as error:
        raise Failure(f"ERROR: failed to get topic producers - {error}") from error
    if not nsqds:
        raise Failure("ERROR: failed to get nsqd stats - failed to query any nsqd: no producer has the topic")
    query = [("format", "json"), ("topic", options.topic), ("channel", options.channel), ("include_clients", "false")]

    async def ask(address: str) -> Any:
        return await http.get(address, "/stats", query)

    asked = await http.ask_all(nsqds, ask)
    if asked.errors:
        raise Failure(f"ERROR: failed to get nsqd stats - failed to query any nsqd: {'; '.join(asked.errors)}")
    return _sum(options, list(asked.answers.values()))


async def _nsqds(options: NsqStatOptions, http: DaemonHttp) -> list[str]:
    if options.nsqd_http_address:
        return list(dict.fromkeys(options.nsqd_http_address))
    found: dict[str, None] = {}
    for lookupd in dict.fromkeys(options.lookupd_http_address):
        answer = await http.get(lookupd, "/lookup", [("topic", options.topic)])
        for producer in answer.get("producers") or ():
            found[join_address(producer["broadcast_address"], producer["http_port"])] = None
    return list(found)


def _sum(options: NsqStatOptions, answers: Sequence[dict[str, Any]]) -> Counts:
    counts = Counts()
    known = False
    for answer in answers:
        for topic in answer.get("topics") or ():
            if topic.get("topic_name") != options.topic:
                continue
            for channel in topic.get("channels") or ():
                if channel.get("channel_name") == options.channel:
                    known = True
                    counts.add(channel)
    if not known:
        raise Failure(
            f"ERROR: failed to find channel({options.channel}) in stats metadata for topic({options.topic})"
        )
    return counts
