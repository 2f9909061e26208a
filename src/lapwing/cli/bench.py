"""lapwing bench: put load on an nsqd and measure it."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from lapwing.cli import shared
from lapwing.cli.commands import Group, Option
from lapwing.client.address import parse
from lapwing.errors import ConfigError
from lapwing.tools.bench import latency as timing
from lapwing.tools.bench import loads, report, server, web
from lapwing.tools.terminal import progress_bars

app = Group(
    "bench",
    "Put load on an nsqd and measure it: rates, latencies, and the CPU time of both ends.\n\n"
    "The load goes to a topic of its own, which is deleted afterwards.",
    example="lapwing bench pub --count 5000000 --plot pub.svg",
)

Tcp = Annotated[str, Option("--nsqd-tcp-address", help="The nsqd to load, host:port.")]
Http = Annotated[str, Option("--nsqd-http-address", help="HTTP address of the nsqd; otherwise the TCP port plus 1.")]
Pid = Annotated[int, Option(help="Process id of the nsqd, if it cannot be found by its port.")]
Topic = Annotated[str, Option(help="Use this topic and keep it; otherwise a new one is used and deleted.")]
Size = Annotated[int, Option(min=1, help="Bytes of a message's body.")]
Count = Annotated[int, Option(min=1, help="How many messages.")]
Seconds = Annotated[float, Option(min=0, help="Stop after this long instead of after --count.")]
Batch = Annotated[int, Option(min=1, help="Messages of one MPUB; 1 publishes with PUB.")]
Window = Annotated[int, Option(min=1, help="Publish commands that may be unanswered on a connection.")]
Connections = Annotated[int, Option(min=1, help="Publishing connections.")]
Consumers = Annotated[int, Option(min=1, help="Consumers of each channel.")]
Ready = Annotated[int, Option("--rdy", min=1, help="Messages in flight to a consumer.")]
Plot = Annotated[str, Option(help="Draw the result into this .svg or .png file.")]


@dataclass(frozen=True, slots=True)
class TargetFlags:
    """The nsqd under load, the messages, and how the result is shown."""

    tcp: Tcp = "127.0.0.1:4150"
    http: Http = ""
    pid: Pid = 0
    topic: Topic = ""
    size: Size = 200
    as_json: shared.Json = False
    plot: Plot = ""


@dataclass(frozen=True, slots=True)
class PublishingFlags:
    """The way in which messages are published."""

    seconds: Seconds = 0
    batch: Batch = 200
    window: Window = 4


_TARGET = TargetFlags()
_PUBLISHING = PublishingFlags()


def _run(
    load: Callable[[loads.Target, loads.LoadSettings], report.Result], flags: TargetFlags, *, count: int | None,
    seconds: float = 0, **settings: Any,
) -> None:  # fmt: skip
    address, http, plot = parse(flags.tcp), flags.http, flags.plot
    if not http and not address.unix:
        http = f"{address.host}:{address.port + 1}"
    if plot and not plot.endswith((".svg", ".png")):
        raise ConfigError(f"{plot}: the name of the picture must end in .svg or .png")
    target, kept = loads.Target(address, http, flags.pid or None), bool(flags.topic)
    with progress_bars(quiet=flags.as_json) as bars:
        chosen = loads.LoadSettings(
            topic=flags.topic or loads.fresh_topic(), count=None if seconds else count, seconds=seconds or None,
            size=flags.size, report=bars, **settings,
        )  # fmt: skip
        try:
            result = load(target, chosen)
        except BaseException:
            _clean_up(http, chosen.topic, kept=kept, quiet=True)
            raise
        _clean_up(http, chosen.topic, kept=kept, quiet=False)
    print(json.dumps(result.as_json(), indent=2) if flags.as_json else report.text(result))
    if plot:
        report.plot([result], plot)


def _clean_up(http: str, topic: str, *, kept: bool, quiet: bool) -> None:
    """Delete the topic of the load, or warn that it stays behind."""
    if not kept and http and (problem := server.delete_topic(http, topic)) and not quiet:
        shared.warn(f"the topic {topic} stays behind: {problem} at {http}; name it with --nsqd-http-address")


@app.command(example="lapwing bench pub --batch 1 --connections 16 --window 1 --count 200000")
def pub(
    count: Count = 1_000_000, connections: Connections = 2, publishing: PublishingFlags = _PUBLISHING,
    target: TargetFlags = _TARGET,
) -> None:  # fmt: skip
    """Publish as fast as the server acknowledges."""
    _run(loads.publish, target, count=count, publishers=connections, **asdict(publishing))


@app.command(example="lapwing bench sub --count 2000000 --consumers 2 --rdy 2500")
def sub(
    count: Count = 1_000_000, consumers: Consumers = 2, ready: Ready = 2500, target: TargetFlags = _TARGET
) -> None:
    """Fill a channel, then consume and finish all of it; only the second part is measured."""
    _run(loads.consume, target, count=count, consumers=consumers, ready=ready)


@app.command(example="lapwing bench pubsub --seconds 10")
def pubsub(
    count: Count = 1_000_000, connections: Connections = 2, consumers: Consumers = 2, ready: Ready = 2500,
    publishing: PublishingFlags = _PUBLISHING, target: TargetFlags = _TARGET,
) -> None:  # fmt: skip
    """Publish and consume at the same time."""
    _run(loads.publish_and_consume, target, count=count, publishers=connections, consumers=consumers, ready=ready,
         **asdict(publishing))  # fmt: skip


@app.command(example="lapwing bench fanout --channels 8")
def fanout(
    channels: Annotated[int, Option(min=1, help="Channels of the topic.")] = 8,
    count: Count = 200_000, connections: Connections = 1, consumers: Consumers = 1, ready: Ready = 2500,
    publishing: PublishingFlags = _PUBLISHING, target: TargetFlags = _TARGET,
) -> None:  # fmt: skip
    """Publish to a topic with many channels, each consumed; counted per delivered message."""
    _run(loads.fan_out, target, count=count, publishers=connections, consumers=consumers, channels=channels,
         ready=ready, **asdict(publishing))  # fmt: skip


@app.command(example="lapwing bench latency --rate 10000 --seconds 10 --plot latency.svg")
def latency(
    rate: Annotated[int, Option(min=1, help="Messages a second, evenly.")] = 10_000,
    seconds: Annotated[float, Option(min=0.1, help="How long.")] = 5,
    ready: Ready = 2500,
    target: TargetFlags = _TARGET,
) -> None:
    """Publish at a steady rate and time each message from when it was due until it is delivered."""
    _run(timing.latency, target, count=None, seconds=seconds, rate=rate, ready=ready)


@app.command(example="lapwing bench http --connections 32 --count 100000")
def http(
    count: Count = 100_000, seconds: Seconds = 0, connections: Connections = 32, target: TargetFlags = _TARGET
) -> None:
    """Publish over HTTP, one message per request."""
    _run(web.publish, target, count=count, seconds=seconds, publishers=connections)
