"""lapwing sql: ask the archive."""

import json
import logging
import sys
from typing import Annotated

from lapwing.cli import shared
from lapwing.cli.commands import Argument, Option, command


@command(example='lapwing sql "select country, count(*), sum(total) from orders group by country"')
def app(
    sql: Annotated[
        str, Argument(metavar="QUERY", help="One query in Spark SQL. A topic is a table; quote other names: `a.b`.")
    ],
    archive: Annotated[str, Option(help="Folder of the archive, or its URL.")] = "lapwing-data/archive",
    rows: Annotated[int, Option("--rows", "-n", min=1, help="Show at most so many rows.")] = 100,
    as_json: shared.Json = False,
) -> None:
    """Run a SQL query over the table that the archive pipeline has written.

    The fields of JSON bodies are columns, and so are _topic, _node, _sequence, _id, _timestamp and _headers. Spark
    starts for it, which takes some seconds.
    """
    from lapwing.cli.pipeline import STARTING, busy, spark_needed
    from lapwing.tools.sql_check import check

    check(sql)  # mistakes that show without Spark are errors at once
    with spark_needed(), busy("looking at the archive", only_on_terminal=True):
        from lapwing.spark.files import is_local, plain_place
        from lapwing.spark.pipelines.run.stderr_filter import quieted
        from lapwing.spark.session import local_session
        from lapwing.spark.tables.archive_views import query, topics

        archive = plain_place(archive)
        if is_local(archive):
            topics(archive)  # a folder without an archive is an error at once, not after the start of Spark
    with quieted():
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        with busy(*STARTING):
            spark = local_session("lapwing sql")
        try:
            with busy("running the query", only_on_terminal=True):
                names, found = query(spark, archive, sql, rows + 1)
        finally:
            spark.stop()
    if as_json:
        print(json.dumps(found[:rows], indent=2, ensure_ascii=False))
        return
    _show(names, found[:rows])
    if len(found) > rows:
        shared.warn(f"only the first {rows} rows are shown; --rows shows more")


def _show(names: list[str], found: list[dict[str, object]]) -> None:
    from lapwing.client.format import printable_text
    from lapwing.tools.terminal import Column, Terminal, table

    numbers = {name for name in names if all(isinstance(row.get(name, 0), (int, float)) for row in found)}
    columns = [Column(name, left=name not in numbers) for name in names]
    texts = [[printable_text(_text(row.get(name))) for name in names] for row in found]
    print("\n".join(table(columns, texts, Terminal.of(sys.stdout))))


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
