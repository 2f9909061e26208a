"""lapwing doctor: examine this machine."""

import json
from pathlib import Path
from typing import Annotated

import typer

from lapwing.cli import shared

app = shared.app()

_SIGNS = {"fine": "ok  ", "warning": "warn", "bad": "BAD "}


@app.command(epilog="Example: lapwing doctor --data /var/lib/nsqd")
def doctor(
    data: Annotated[Path, typer.Option(help="Where logs are, or will be.")] = Path("lapwing-data"),
    host: Annotated[str, typer.Option(help="Address whose ports are looked at.")] = "127.0.0.1",
    as_json: shared.Json = False,
) -> None:
    """Look for what would make lapwing slow or unsafe here: disk, fsync, file limits, clock, ports, Java, kernel.

    Exit code 0: all fine, 1: there is something to improve, 2: something will not work.
    """
    from lapwing.tools.doctor import examine, version

    findings = []
    if not as_json:
        print(version())
    for finding in examine(data, host=host):
        findings.append(finding)
        if not as_json:
            print(f"{_SIGNS[finding.level]}  {finding.what:<22} {finding.seen}", flush=True)
            if finding.advice:
                print(f"      {'':<22} -> {finding.advice}")
    if as_json:
        print(json.dumps([finding.as_json() for finding in findings], indent=2))
    levels = {finding.level for finding in findings}
    raise typer.Exit(2 if "bad" in levels else 1 if "warning" in levels else 0)
