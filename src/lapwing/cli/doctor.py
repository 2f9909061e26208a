"""lapwing doctor: examine this machine."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from lapwing.cli import shared
from lapwing.cli.commands import Option, command

_SIGNS = {"fine": "ok  ", "warning": "warn", "bad": "BAD "}
_WIDTH = len("port 4161 (lookupd http)")


@command(example="lapwing doctor --data /var/lib/nsqd")
def app(
    data: Annotated[Path, Option(help="The folder of the logs, which need not exist yet.")] = Path("lapwing-data"),
    host: Annotated[str, Option(help="Address whose ports are examined.")] = "127.0.0.1",
    as_json: shared.Json = False,
) -> None:
    """Look for what would make lapwing slow or unsafe here: disk, fsync, file limits, clock, ports, Java, kernel.

    Exit codes: 0 all fine, 1 something can be improved, 2 something will not work.
    """
    from lapwing.tools.doctor import examine, version

    findings = []
    if not as_json:
        print(version())
    for finding in examine(data, host=host):
        findings.append(finding)
        if not as_json:
            print(f"{_SIGNS[finding.level]}  {finding.what:<{_WIDTH}}  {finding.seen}", flush=True)
            if finding.advice:
                print(f"      -> {finding.advice}")
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    levels = {finding.level for finding in findings}
    sys.exit(2 if "bad" in levels else 1 if "warning" in levels else 0)
