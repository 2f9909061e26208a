"""`nsqadmin`: the web UI and its JSON API."""

import signal
import sys
from collections.abc import Sequence

from lapwing.admin.options import AdminOptions
from lapwing.cli import flags
from lapwing.errors import ConfigError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until a signal: exit code 0; 1 if it cannot start, 2 for a bad flag."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)  # it takes a second to start, and to be stopped meanwhile is no failure
    options = flags.read(AdminOptions, "nsqadmin", arguments, "nsqadmin --lookupd-http-address=127.0.0.1:4161").options
    if options.version:
        print(flags.version_text("nsqadmin"))
        return
    if options.hash_password:
        _print_hash(options.hash_password)
        return
    from lapwing.admin import daemon

    try:
        daemon.run(options)
    except ConfigError as error:
        sys.stderr.write(f"failed to instantiate nsqadmin - {error}\n")
        raise SystemExit(1) from None


def _leave(number: int, frame: object) -> None:
    raise SystemExit(0)


def _print_hash(user: str) -> None:
    from getpass import getpass

    from lapwing.admin.access import hash_password

    # on a terminal nobody looks over the shoulder; getpass would bypass a pipe
    password = getpass() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
    if not password or ":" in user:
        sys.stderr.write("nsqadmin: a password is needed, and a user's name without a colon\n")
        raise SystemExit(1)
    print(f"{user}:{hash_password(password)}")


if __name__ == "__main__":
    main()
