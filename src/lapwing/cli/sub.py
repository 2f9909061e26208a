"""lapwing sub: consume."""

import json
import sys
from typing import Annotated

import typer

from lapwing.cli import shared

app = shared.app()


@app.command(epilog="Example: lapwing sub orders billing --count 10 --json")
def sub(
    topic: shared.Topic,
    channel: Annotated[str, typer.Argument(help="The channel; one that ends in #ephemeral vanishes with us.")],
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="End after so many messages; 0: never.")] = 0,
    in_flight: Annotated[int, typer.Option("--max-in-flight", min=1, help="Messages held at once.")] = 200,
    timeout: Annotated[float, typer.Option(min=0, help="End with exit code 1 when nothing came for so long.")] = 0,
    tcp: shared.NsqdTcp = None,
    lookupd: shared.LookupdHttp = None,
    as_json: shared.Json = False,
) -> None:
    """Consume a channel: print each message, and finish it once it is printed. Ctrl-C gives back what is left."""
    direct, discovered = shared.chosen(tcp, lookupd, shared.NSQD_TCP)
    shared.tell_of_trouble()
    got = shared.run(lambda: _consume(topic, channel, count, in_flight, timeout, direct, discovered, as_json))
    if not got:
        typer.echo(f"nothing came within {timeout:g} s", err=True)
        raise typer.Exit(1)


async def _consume(
    topic: str, channel: str, count: int, in_flight: int, timeout: float, direct: list[str], discovered: list[str],
    as_json: bool,
) -> bool:
    import asyncio

    from lapwing import Consumer
    from lapwing.tools.message_format import delivered_json, printable

    if count:
        in_flight = min(in_flight, count)
    terminal = sys.stdout.isatty()
    out = sys.stdout.buffer
    done = 0
    async with Consumer(topic, channel, nsqd=direct, lookupd=discovered, max_in_flight=in_flight, max_attempts=0,
                        user_agent="lapwing-sub") as consumer:
        while not count or done < count:
            try:
                message = await asyncio.wait_for(anext(consumer), timeout or None)
            except TimeoutError:
                return False
            if count:
                # what will not be printed was better never taken: told before the FIN that would let it come
                consumer.max_in_flight = min(in_flight, count - done - 1)
            with message:
                line = json.dumps(delivered_json(message), ensure_ascii=False).encode() if as_json else message.body
                try:
                    out.write((printable(line) if terminal and not as_json else line) + b"\n")
                    out.flush()
                except OSError:  # our reader has seen enough, or a disk is full; nothing is wrong with the message
                    message.requeue(0, backoff=False)
                    raise
            done += 1
    return True
