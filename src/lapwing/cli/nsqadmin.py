"""`nsqadmin`: the web UI and its JSON API."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

from lapwing.cli.starting import leave_at_signals

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until a signal: exit code 0; 1 if it cannot start, 2 for a bad flag."""
    leave_at_signals()
    gc.disable()  # nothing that starting makes is garbage
    from lapwing.admin.options import AdminOptions
    from lapwing.cli import flags

    options = flags.read(AdminOptions, "nsqadmin", arguments, "nsqadmin --lookupd-http-address=127.0.0.1:4161").options
    if options.version:
        print(flags.version_text("nsqadmin"))
        return
    if options.hash_password:
        _print_hash(options.hash_password)
        return
    from lapwing.admin import daemon
    from lapwing.errors import ConfigError

    try:
        daemon.run(options)
    except ConfigError as error:
        sys.stderr.write(f"failed to instantiate nsqadmin - {error}\n")
        raise SystemExit(1) from None


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
