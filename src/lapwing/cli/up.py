"""lapwing up: the whole stack on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from lapwing.cli.shared import app as command
from lapwing.errors import ConfigError

app = command()


@app.command(epilog="Example: lapwing up --demo")
def up(
    data: Annotated[Path, typer.Option(help="Folder for messages, archives, checkpoints and logs.")] = Path(
        "lapwing-data"
    ),
    demo: Annotated[bool, typer.Option("--demo", help="Add traffic: orders that sometimes fail.")] = False,
    demo_rate: Annotated[int, typer.Option(min=1, help="Orders a second, on average.")] = 40,
    spark: Annotated[bool, typer.Option("--spark/--no-spark", help="Run the data pipelines: archive, flow.")] = True,
    admin: Annotated[bool, typer.Option("--admin/--no-admin", help="Run nsqadmin, the web UI.")] = True,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    durability: Annotated[str, typer.Option(help="nsqd's: memory, os or fsync.")] = "os",
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between status lines without a terminal.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Status lines as JSON.")] = False,
) -> None:
    """Run nsqlookupd, nsqd, nsqadmin and the data pipelines on this machine; Ctrl-C stops all of them.

    Ports are NSQ's (4150, 4151, 4160, 4161, 4171); where one is taken, a free one is used and named. A program that
    dies is started again.
    """
    from lapwing.tools import stack
    from lapwing.tools import up as stack_run

    if durability not in ("memory", "os", "fsync"):
        raise ConfigError(f"--durability {durability}: expected memory, os or fsync")
    plan = stack.plan(data.absolute(), host=host, admin=admin, spark=spark, demo=demo, demo_rate=demo_rate,
                      durability=durability)
    raise typer.Exit(stack_run.run(plan, every=every, as_json=as_json))
