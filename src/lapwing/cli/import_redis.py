"""lapwing import-redis: copy streams from a live Redis server."""

import json
import sys
from dataclasses import asdict
from typing import Annotated, Any

from lapwing.cli.commands import Argument, Option, command
from lapwing.cli.shared import Json
from lapwing.errors import ConfigError


@command(example="lapwing import-redis redis.example:6379 orders 'events:*' --to 127.0.0.1:6379")
def app(
    source: Annotated[str, Argument(metavar="HOST:PORT", help="The Redis server to copy from; it keeps its streams.")],
    streams: Annotated[list[str], Argument(metavar="STREAM...", help="Keys, or patterns such as 'events:*'.")],
    to: Annotated[str, Option(metavar="HOST:PORT", help="The --redis-address of nsqd.")] = "127.0.0.1:6379",
    password: Annotated[str, Option(metavar="TEXT", help="Password of the Redis server.")] = "",
    to_password: Annotated[str, Option(metavar="TEXT", help="Secret for nsqd, where it asks for one.")] = "",
    database: Annotated[int, Option(min=0, max=15, help="Database to copy from, and to.")] = 0,
    tls: Annotated[bool, Option("--tls", help="Connect to the Redis server with TLS.")] = False,
    groups: Annotated[bool, Option("--groups/--no-groups", help="Copy groups, consumers and pending entries.")] = True,
    dry_run: Annotated[bool, Option("--dry-run", help="Only list the streams and how many entries they have.")] = False,
    as_json: Json = False,
) -> None:
    """Copy streams from a live Redis server into nsqd: entries with their ids, groups, consumers, pending entries.

    A stream that was copied before is continued behind its last entry, so the command can be repeated until producers
    and consumers have moved. Exit code 1 when a stream could not be copied.
    """
    import asyncio
    import ssl

    from lapwing.tools.import_redis import RedisImport
    from lapwing.tools.redis_client import RedisServer
    from lapwing.tools.terminal import progress_bars
    from lapwing.wire.resp.errors import ErrorReply

    if source == to:
        raise ConfigError(f"{source}: a server cannot be copied to itself: give --to the --redis-address of nsqd")
    context = ssl.create_default_context() if tls else None

    async def copy() -> list[dict[str, Any]]:
        there = await RedisServer.open(source, password=password, database=database, tls=context)
        here = there
        done: list[dict[str, Any]] = []
        try:
            if not dry_run:
                here = await RedisServer.open(to, password=to_password, database=database)
            with progress_bars(quiet=as_json or dry_run, unit=lambda count: f"{count:,}") as report:
                importer = RedisImport(there, here, report)
                keys = [key for pattern in streams for key in await importer.streams(pattern)]
                if not keys:
                    raise ConfigError(f"{source}: no stream matches {' '.join(streams)}")
                for key in dict.fromkeys(keys):
                    if dry_run:
                        done.append({"stream": key.decode("utf-8", "replace"), "entries": await there.ask("XLEN", key)})
                        continue
                    try:
                        done.append(asdict(await importer.copy(key, groups=groups)))
                    except ErrorReply as error:
                        done.append({"stream": key.decode("utf-8", "replace"), "problem": error.line})
        finally:
            await there.close()
            if here is not there:
                await here.close()
        return done

    copied = asyncio.run(copy())
    if as_json:
        print(json.dumps(copied, indent=2))
    for each in () if as_json else copied:
        print(_line(each))
    if any(each.get("problem") for each in copied):
        sys.exit(1)


def _line(each: dict[str, Any]) -> str:
    if each.get("problem"):
        return f"{each['stream']}: not copied: {each['problem']}"
    if "groups" not in each:
        return f"{each['entries']:>12,}  {each['stream']}"
    text = f"{each['stream']}: {each['entries']:,} entries, {each['groups']} groups, {each['pending']:,} pending"
    gone = each["not_pending"]
    return text + (f"; {gone:,} pending entries were deleted from the stream and are left out" if gone else "")
