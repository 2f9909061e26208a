"""lapwing sql: ask the topics, those in the archive and those on the brokers, with SQL."""

import csv
import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any, Final

from lapwing.cli import shared
from lapwing.cli.commands import Argument, Option, UsageError, command
from lapwing.errors import ConfigError
from lapwing.tools import sql_check

if TYPE_CHECKING:
    from lapwing.spark.sql.topics import Topics

Result = tuple[list[str], Iterator[list[Any]]]

_ROWS: Final = 100  # that a person gets
_AT_ONCE: Final = 1000  # that are waited for before a script gets the first
_NAMED: Final = 20  # topics of an error
_SHOW: Final = re.compile(r"\s*show\s+tables\s*;?\s*", re.IGNORECASE)


@command(example='lapwing sql "select country, count(*), sum(total) from orders group by country"')
def app(
    sql: Annotated[
        str, Argument(metavar="QUERY", help='One query. A topic is a table; quote names like "a.b". Or: show tables.')
    ],
    archive: Annotated[str, Option(help="Folder of the archive, or its URL.")] = "lapwing-data/archive",
    rows: Annotated[
        int | None,
        Option("--rows", "-n", min=1, help=f"Show at most this many rows ({_ROWS}; all with --json and --csv)."),
    ] = None,
    engine: Annotated[
        str, Option(choices=("duckdb", "spark"), help="Answer with DuckDB, or with Spark, which starts first.")
    ] = "duckdb",
    cluster: shared.ClusterFlags = shared.ClusterFlags(),  # noqa: B008  frozen
    as_csv: Annotated[bool, Option("--csv", help="Print CSV, for scripts.")] = False,
    as_json: shared.Json = False,
) -> None:
    """Run a SQL query over topics: the archive of the pipeline, and what the brokers have beyond it, each message once.

    The fields of JSON bodies are columns, and so are _topic, _node, _sequence, _id, _timestamp (UTC) and _headers. A
    topic that is not archived is read from the brokers alone.
    """
    from lapwing.cli.pipeline import busy

    if as_csv and as_json:
        raise UsageError("give --csv or --json, not both")
    logging.getLogger("lapwing.spark").addHandler(logging.StreamHandler())
    limit = rows or (None if as_csv or as_json else _ROWS)
    with _installed(), _answer(sql, archive, engine, cluster, limit and limit + 1) as (names, found):
        with busy("running the query", only_on_terminal=True):
            head = list(islice(found, (limit or _AT_ONCE) + 1))
        shown = islice(chain(head, found), limit)
        (_print_json if as_json else _print_csv if as_csv else _print_table)(names, shown)
    if limit is not None and len(head) > limit:
        shared.warn(f"only the first {limit} rows are shown; --rows shows more")


@contextmanager
def _installed() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name in ("duckdb", "pyarrow", "deltalake"):
            missing = f"DuckDB is not installed; pip install 'lapwing[sql]' ({error.name} is missing)"
            raise ConfigError(missing) from error
        raise


@contextmanager
def _answer(
    sql: str, archive: str, engine: str, cluster: shared.ClusterFlags, count: int | None
) -> Iterator[Result]:
    """Give the columns and the rows of a query's result, of which `count` are wanted."""
    from lapwing.cli.pipeline import STARTING, busy, spark_needed

    with ExitStack() as stack:
        if engine == "duckdb":
            from lapwing.spark.sql.duckdb_views import DuckDb

            database = stack.enter_context(closing(DuckDb()))
            sql = sql_check.double_quoted(sql)
            named = database.tables(sql)
        else:
            sql_check.check(sql)  # mistakes that show without Spark are errors at once
            named = None
        with busy("looking at the topics", only_on_terminal=True):
            topics = _topics(archive, cluster)
            found = topics.find(sql_check.identifiers(sql) if named is None else named)
        if _SHOW.fullmatch(sql):
            yield ["topic"], ([name] for name in topics.names())
        elif engine == "duckdb":
            for name, rows in found.items():
                database.add(name, rows)
            yield stack.enter_context(database.query(sql, lambda: _there(topics)))
        else:
            with spark_needed():
                from lapwing.spark.session import local_session
                from lapwing.spark.sql.spark_views import query

            logging.getLogger("py4j").setLevel(logging.CRITICAL)
            with busy(*STARTING):
                spark = local_session("lapwing sql")
            stack.callback(spark.stop)
            with busy("running the query", only_on_terminal=True):
                yield query(spark, topics.place, found, sql, count=count, hint=_there(topics))


def _topics(archive: str, cluster: shared.ClusterFlags) -> "Topics":
    from lapwing.spark.sql.topics import Topics

    where = shared.addresses(cluster)
    access = {"lookupd": where.lookupd_http} if where.lookupd_http else {"nsqd": where.nsqd_http or [shared.NSQD_HTTP]}
    raw = {name: ",".join(addresses) for name, addresses in access.items()}
    if where.auth_secret:
        raw["authSecret"] = where.auth_secret
    return Topics(archive, raw, needed=bool(where.nsqd_http or where.lookupd_http))


def _there(topics: "Topics") -> str:
    names = topics.names()
    shown = ", ".join(name if name.isidentifier() else f'"{name}"' for name in names[:_NAMED]) or "none yet"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"; the topics are: {shown}{more}"


def _print_json(names: list[str], rows: Iterator[list[Any]]) -> None:
    lines = (json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) for row in rows)
    print("[", end="")
    for number, line in enumerate(lines):
        print(",\n " if number else "", line, sep="", end="")
    print("]")


def _print_csv(names: list[str], rows: Iterator[list[Any]]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_cell(value) for value in row] for row in rows)


def _cell(value: object) -> object:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


def _print_table(names: list[str], rows: Iterator[list[Any]]) -> None:
    from lapwing.client.format import printable_text
    from lapwing.tools.terminal import Column, Terminal, table

    found = list(rows)
    columns = [
        Column(name, left=not all(isinstance(row[index], int | float | None) for row in found))
        for index, name in enumerate(names)
    ]
    texts = [[printable_text(_text(value)) for value in row] for row in found]
    print("\n".join(table(columns, texts, Terminal.of(sys.stdout))))


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
