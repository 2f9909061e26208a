"""lapwing bench: put load on an nsqd and measure it."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from lapwing.client.address import parse
from lapwing.errors import ConfigError
from lapwing.tools.bench import latency as timing
from lapwing.tools.bench import loads, peers, report, server, web

app = typer.Typer(
    add_completion=False, no_args_is_help=True, rich_markup_mode=None,
    help="Put load on an nsqd and measure it: rates, latencies, and the CPU time of both ends.\n\n"
    "The load goes to a topic of its own, which is deleted afterwards.",
    epilog="Example: lapwing bench pub --count 5000000 --peer redis --plot pub.svg",
)

Tcp = Annotated[str, typer.Option("--nsqd-tcp-address", help="The nsqd to load, host:port.")]
Http = Annotated[str, typer.Option("--nsqd-http-address", help="Its HTTP address (default: the TCP port plus 1).")]
Pid = Annotated[int, typer.Option(help="Its process, if it cannot be found by its port.", show_default=False)]
Topic = Annotated[str, typer.Option(help="Use this topic and leave it there (default: a fresh one, deleted after).")]
Size = Annotated[int, typer.Option(min=1, help="Bytes of a message's body.")]
Count = Annotated[int, typer.Option(min=1, help="How many messages.")]
Seconds = Annotated[float, typer.Option(min=0, help="Stop after this long instead of after --count.")]
Batch = Annotated[int, typer.Option(min=1, help="Messages of one MPUB; 1 publishes with PUB.")]
Window = Annotated[int, typer.Option(min=1, help="Publish commands that may be unanswered on a connection.")]
Connections = Annotated[int, typer.Option(min=1, help="Publishing connections.")]
Consumers = Annotated[int, typer.Option(min=1, help="Consumers of each channel.")]
Ready = Annotated[int, typer.Option("--rdy", min=1, help="Messages in flight to a consumer.")]
Peer = Annotated[str, typer.Option(help="Run the same load on a peer beside it: redis or nats.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Plot = Annotated[str, typer.Option(help="Draw the result into this .svg or .png file.")]


@contextmanager
def _progress(quiet: bool) -> Iterator[loads.Tell]:
    """A bar on a terminal, nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    # no thread of its own: the bar must not take CPU time from the load
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        tasks: dict[str, Any] = {}

        def tell(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)
            progress.refresh()

        yield tell


def _run(
    load: Callable[[loads.Target, loads.Settings], report.Result], *, tcp: str, http: str, pid: int, peer: str,
    as_json: bool, plot: str, topic: str, count: int | None, seconds: float, **settings: Any,
) -> None:
    address = parse(tcp)
    if not http and not address.unix:
        http = f"{address.host}:{address.port + 1}"
    if plot and not plot.endswith((".svg", ".png")):
        raise ConfigError(f"{plot}: the picture's name must end in .svg or .png")
    beside = peers.named(peer) if peer else None
    target = loads.Target(address, http, pid or None)
    with _progress(as_json) as tell:
        chosen = loads.Settings(
            topic=topic or loads.fresh_topic(), count=None if seconds else count, seconds=seconds or None, tell=tell,
            **settings,
        )
        try:
            results = [load(target, chosen)]
        except BaseException:
            _clean_up(http, chosen.topic, kept=bool(topic), quiet=True)
            raise
        _clean_up(http, chosen.topic, kept=bool(topic), quiet=False)
        if beside is not None:
            results.append(beside(results[0], chosen))
    if as_json:
        told = results[0].as_json()
        if beside is not None:
            told["peer"] = results[1].as_json()
            told["ratio"] = report.ratios(results[0], results[1])
        print(json.dumps(told, indent=2))
    else:
        for result in results:
            print(report.text(result))
        if beside is not None:
            print(report.ratio_text(results[0], results[1]))
    if plot:
        report.plot(results, plot)


def _clean_up(http: str, topic: str, *, kept: bool, quiet: bool) -> None:
    """Delete the load's own topic; where that fails, the operator hears what stays behind."""
    if not kept and http and (problem := server.delete_topic(http, topic)) and not quiet:
        typer.echo(f"the topic {topic} stays behind: {problem} at {http}; name it with --nsqd-http-address", err=True)


@app.command(epilog="Example: lapwing bench pub --batch 1 --connections 16 --window 1 --count 200000")
def pub(
    tcp: Tcp = "127.0.0.1:4150", http: Http = "", pid: Pid = 0, topic: Topic = "", size: Size = 200,
    count: Count = 1_000_000, seconds: Seconds = 0, batch: Batch = 200, window: Window = 4,
    connections: Connections = 2, peer: Peer = "", as_json: Json = False, plot: Plot = "",
) -> None:
    """Publish as fast as the server acknowledges."""
    _run(loads.publish, tcp=tcp, http=http, pid=pid, peer=peer, as_json=as_json, plot=plot, topic=topic, count=count,
         seconds=seconds, size=size, batch=batch, window=window, publishers=connections)


@app.command(epilog="Example: lapwing bench sub --count 2000000 --consumers 2 --rdy 2500")
def sub(
    tcp: Tcp = "127.0.0.1:4150", http: Http = "", pid: Pid = 0, topic: Topic = "", size: Size = 200,
    count: Count = 1_000_000, consumers: Consumers = 2, ready: Ready = 2500,
    peer: Peer = "", as_json: Json = False, plot: Plot = "",
) -> None:
    """Fill a channel, then consume and finish all of it; only the latter is measured."""
    _run(loads.consume, tcp=tcp, http=http, pid=pid, peer=peer, as_json=as_json, plot=plot, topic=topic, count=count,
         seconds=0, size=size, consumers=consumers, ready=ready)


@app.command(epilog="Example: lapwing bench pubsub --seconds 10")
def pubsub(
    tcp: Tcp = "127.0.0.1:4150", http: Http = "", pid: Pid = 0, topic: Topic = "", size: Size = 200,
    count: Count = 1_000_000, seconds: Seconds = 0, batch: Batch = 200, window: Window = 4,
    connections: Connections = 2, consumers: Consumers = 2, ready: Ready = 2500, as_json: Json = False, plot: Plot = "",
) -> None:
    """Publish and consume at the same time."""
    _run(loads.publish_and_consume, tcp=tcp, http=http, pid=pid, peer="", as_json=as_json, plot=plot, topic=topic,
         count=count, seconds=seconds, size=size, batch=batch, window=window, publishers=connections,
         consumers=consumers, ready=ready)


@app.command(epilog="Example: lapwing bench fanout --channels 8")
def fanout(
    channels: Annotated[int, typer.Option(min=1, help="Channels of the topic.")] = 8,
    tcp: Tcp = "127.0.0.1:4150", http: Http = "", pid: Pid = 0, topic: Topic = "", size: Size = 200,
    count: Count = 200_000, seconds: Seconds = 0, batch: Batch = 200, window: Window = 4,
    connections: Connections = 1, consumers: Consumers = 1, ready: Ready = 2500, as_json: Json = False, plot: Plot = "",
) -> None:
    """Publish to a topic with many channels, each consumed; counted per delivered message."""
    _run(loads.fan_out, tcp=tcp, http=http, pid=pid, peer="", as_json=as_json, plot=plot, topic=topic, count=count,
         seconds=seconds, size=size, batch=batch, window=window, publishers=connections, consumers=consumers,
         channels=channels, ready=ready)


@app.command(epilog="Example: lapwing bench latency --rate 10000 --seconds 10 --plot latency.svg")
def latency(
    rate: Annotated[int, typer.Option(min=1, help="Messages a second, evenly.")] = 10_000,
    tcp: Tcp = "127.0.0.1:4150", http: Http = "", pid: Pid = 0, topic: Topic = "", size: Size = 200,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long.")] = 5, ready: Ready = 2500,
    as_json: Json = False, plot: Plot = "",
) -> None:
    """Publish at a steady rate and time each message from when it was due until it is delivered."""
    _run(timing.latency, tcp=tcp, http=http, pid=pid, peer="", as_json=as_json, plot=plot, topic=topic, count=None,
         seconds=seconds, size=size, rate=rate, ready=ready)


@app.command(epilog="Example: lapwing bench http --connections 32 --count 100000")
def http(
    tcp: Tcp = "127.0.0.1:4150", http: Http = "", pid: Pid = 0, topic: Topic = "", size: Size = 200,
    count: Count = 100_000, seconds: Seconds = 0, connections: Connections = 32, as_json: Json = False, plot: Plot = "",
) -> None:
    """Publish over HTTP, a message a request."""
    _run(web.publish, tcp=tcp, http=http, pid=pid, peer="", as_json=as_json, plot=plot, topic=topic, count=count,
         seconds=seconds, size=size, publishers=connections)
