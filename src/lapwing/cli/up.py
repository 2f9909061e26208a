"""lapwing up: the whole stack on this machine."""

from pathlib import Path
from typing import Annotated

from lapwing.cli.commands import Option, command


@command(example="lapwing up --demo")
def app(
    data: Annotated[Path, Option(help="Folder for messages, archives, checkpoints and logs.")] = Path("lapwing-data"),
    nodes: Annotated[int, Option(min=1, max=20, help="Number of nsqds.")] = 1,
    demo: Annotated[
        bool, Option("--demo", help="Add a shop: NSQ and Redis clients, orders that sometimes fail, and what to try.")
    ] = False,
    demo_rate: Annotated[int, Option(min=1, help="Orders a second, on average.")] = 40,
    demo_without: Annotated[
        list[str], Option("--demo-without", metavar="CHANNEL", help="Leave the consumer of this channel out: "
                          "billing, shipping, analytics, ledger, mail.")
    ] = [],  # noqa: B006
    spark: Annotated[bool, Option("--spark/--no-spark", help="Run the data pipeline archive.")] = True,
    prepare: Annotated[
        str, Option(metavar="PROGRAM", help="Where Spark is missing: a program that installs it while the rest runs.")
    ] = "",
    admin: Annotated[bool, Option("--admin/--no-admin", help="Run nsqadmin, the web UI.")] = True,
    host: Annotated[str, Option(help="Address to listen on; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    durability: Annotated[
        str,
        Option(choices=("memory", "os", "fsync"),
               help="When nsqd acknowledges a publish; see `lapwing docs operations`."),
    ] = "os",
    replicated: Annotated[
        bool, Option("--replicated", help="Keep remote logs in folders, and print how to lose a machine.")
    ] = False,
    every: Annotated[
        float, Option(min=0.2, duration=True, help="Time between status lines without a terminal.")
    ] = 10,
    as_json: Annotated[bool, Option("--json", help="Status lines as JSON.")] = False,
) -> None:
    """Run nsqlookupd, nsqd, nsqadmin and the data pipelines on this machine; Ctrl-C stops all of them.

    Ports are NSQ's (4150, 4151, 4160, 4161, 4171) and, on loopback, Redis's (6379); a port that is taken is
    replaced by a free one, which is printed. A program that dies is started again.
    """
    from lapwing.tools import stack
    from lapwing.tools import up as stack_run

    with stack.starting() as started:
        plan = stack.plan(data.absolute(), host=host, admin=admin, spark=spark, demo=demo, demo_rate=demo_rate,
                          durability="replicated" if replicated else durability, nodes=nodes,
                          demo_without=tuple(demo_without), prepare=prepare)
        stack_run.run(plan, started, every=every, as_json=as_json)
