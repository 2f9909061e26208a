"""nsqd: the broker."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

from lapwing.cli.starting import leave_at_signals

if TYPE_CHECKING:
    from lapwing.broker.settings.options import Options
    from lapwing.cli.flags import Parsed

EXAMPLE = "nsqd --data-path=/var/lib/nsqd --lookupd-tcp-address=127.0.0.1:4160"


def effective(parsed: Parsed[Options]) -> Options:
    """Return the options with derived values: a requested memory limit, TLS that client certificates need."""
    from dataclasses import replace

    options = parsed.options
    if parsed.given("mem_queue_size"):
        options = replace(options, deferred_limit=options.mem_queue_size)
    if options.tls_client_auth_policy and not options.tls_required:
        options = replace(options, tls_required=2)
    return options


def main() -> None:
    """Run the program."""
    leave_at_signals()
    gc.disable()  # nothing that starting makes is garbage; looking for it again and again takes a fifth of the time
    from lapwing.broker.settings.options import Options
    from lapwing.cli.flags import read, version_text

    parsed = read(Options, "nsqd", example=EXAMPLE)
    if parsed.options.version:
        print(version_text("nsqd"))
        return
    import asyncio

    from lapwing.net.event_loop import new_event_loop
    from lapwing.net.logs import Level, Log
    from lapwing.nsqd.daemon import run

    options = effective(parsed)
    log = Log(options.log_prefix, Level(options.log_level))
    log.info(version_text("nsqd"))
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        sys.exit(runner.run(run(options, log)))
