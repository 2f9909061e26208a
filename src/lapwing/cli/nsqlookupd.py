"""nsqlookupd: discovery."""

import sys

from lapwing.cli.starting import leave_at_signals

EXAMPLE = "nsqlookupd --tcp-address=0.0.0.0:4160 --http-address=0.0.0.0:4161"


def main() -> None:
    """Run the program."""
    leave_at_signals()
    import platform

    from lapwing.cli.flags import read
    from lapwing.lookup.options import LookupOptions
    from lapwing.names import NSQ_VERSION

    options = read(LookupOptions, "nsqlookupd", example=EXAMPLE).options
    version = f"nsqlookupd v{NSQ_VERSION} (built w/python{platform.python_version()})"
    if options.version:
        print(version)
        return
    import asyncio

    from lapwing.lookup.daemon import run
    from lapwing.net.event_loop import new_event_loop
    from lapwing.net.logs import Level, Log

    log = Log(options.log_prefix, Level(options.log_level))
    log.info(version)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        sys.exit(runner.run(run(options, log)))


if __name__ == "__main__":
    main()
