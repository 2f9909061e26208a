"""lapwing sub: consume."""

import json
import sys
from typing import Annotated

from lapwing.cli import shared
from lapwing.cli.administer import split_place
from lapwing.cli.commands import Argument, Option, command
from lapwing.cli.contexts import Context


@command(example="lapwing sub orders/billing --count 10 --json")
def app(
    place: Annotated[
        str,
        Argument(metavar="TOPIC/CHANNEL", complete=shared.known_places,
                 help="The channel; one whose name ends in #ephemeral is deleted at the end."),
    ],
    channel: Annotated[
        str, Argument(help="The channel, if the first word is only the topic.", complete=shared.known_channels)
    ] = "",
    count: Annotated[int, Option("--count", "-n", min=0, help="End after this many messages; 0: never.")] = 0,
    bodies: Annotated[bool, Option("--bodies", help="Print bodies as they are, also those of Redis entries.")] = False,
    in_flight: Annotated[int, Option("--max-in-flight", min=1, help="Messages in flight at once.")] = 200,
    timeout: Annotated[
        float, Option(min=0, duration=True, help="End with exit code 1 if no message comes for this long; 0: wait.")
    ] = 0,
    cluster: shared.ClientFlags = shared.ClientFlags(),  # noqa: B008  frozen
    as_json: shared.Json = False,
) -> None:
    """Consume a channel: print each message, and finish it once it is printed. Ctrl-C requeues the rest.

    Entries of Redis clients are printed as a JSON object of their fields, unless --bodies is given.
    """
    topic, channel = split_place(f"{place}/{channel}" if channel else place)
    where = shared.addresses(cluster)
    shared.log_client_warnings()
    got = shared.run(lambda: consume(topic, channel, count, in_flight, timeout, where, as_json, bodies))
    if not got:
        from lapwing.client.format import duration

        shared.warn(f"no message came within {duration(timeout)}")
        sys.exit(1)


async def consume(
    topic: str, channel: str, count: int, in_flight: int, timeout: float, where: Context, as_json: bool, raw: bool
) -> bool:
    """Print and finish `count` messages, or all; return false if none comes for `timeout` seconds."""
    import asyncio

    from lapwing import Consumer
    from lapwing.client.format import printable
    from lapwing.tools.message_format import delivered_json, shown_body

    if count:
        in_flight = min(in_flight, count)
    terminal = sys.stdout.isatty()
    out = sys.stdout.buffer
    done = 0
    nsqds, lookupds = shared.tcp_addresses(where)
    async with Consumer(topic, channel, nsqd=nsqds, lookupd=lookupds, max_in_flight=in_flight, max_attempts=0,
                        user_agent="lapwing-sub", **shared.client_options(where)) as consumer:
        with shared.ends_with_reader():
            while not count or done < count:
                try:
                    async with asyncio.timeout(timeout or None):
                        message = await anext(consumer)
                except TimeoutError:
                    return False
                if count:
                    # RDY falls before the FIN, so that no message comes that will not be printed
                    consumer.max_in_flight = min(in_flight, count - done - 1)
                with message:
                    line = message.body if raw else shown_body(message.body)
                    if as_json:
                        line = json.dumps(delivered_json(message), ensure_ascii=False).encode()
                    try:
                        out.write((printable(line) if terminal and not as_json else line) + b"\n")
                        out.flush()
                    except OSError:  # our reader has seen enough, or a disk is full; nothing is wrong with the message
                        message.requeue(0, backoff=False)
                        raise
                done += 1
    return True
