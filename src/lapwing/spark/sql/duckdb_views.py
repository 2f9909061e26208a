"""Topics as views in DuckDB: a column for each field of JSON bodies, beside what every message has."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final

import duckdb

from lapwing.errors import ConfigError
from lapwing.spark.sql import json_fields
from lapwing.spark.sql.json_fields import Kind
from lapwing.spark.sql.topics import ABOUT, SCHEMA, LiveRows, TopicRows

_SETTINGS: Final[dict[str, Any]] = {"TimeZone": "UTC", "autoinstall_known_extensions": False}  # no query downloads
_AT_ONCE: Final = 1000  # rows that are fetched from DuckDB
_EXAMPLE: Final = "lapwing sql 'select count(*) from orders'"


class DuckDb:
    """A database in memory whose tables are topics."""

    def __init__(self) -> None:
        self._database = duckdb.connect(config=dict(_SETTINGS))
        self._live: list[LiveRows] = []

    def tables(self, sql: str) -> list[str] | None:
        """Return the tables that a query names, or None for one that is no plain query.

        Raises `ConfigError` for a text that is not one query.
        """
        with self._explained():
            count = len(self._database.extract_statements(sql))
            tree = self._database.execute("select json_serialize_sql(?::varchar)", [sql]).fetchall()
        if count != 1:
            found = "here are several" if count else f"there is none; an example: {_EXAMPLE}"
            raise ConfigError(f"sql: one query is expected, and {found}")
        parsed = json.loads(tree[0][0])
        return None if parsed["error"] else sorted(set(_tables(parsed)))

    def add(self, topic: str, rows: TopicRows) -> None:
        """Make a view of a topic."""
        columns = ", ".join(_quoted(each) for each in SCHEMA.names)
        parts = []
        for kind, found in (("archived", rows.archived), ("live", rows.live)):
            if found is not None:
                self._database.register(f"{kind}/{topic}", found)
                parts.append(f"select {columns} from {_quoted(f'{kind}/{topic}')}")
        if rows.live is not None:
            self._live.append(rows.live)
        kinds = {name: kind for name, kind in rows.fields().items() if name.lower() not in ABOUT}
        with self._explained():
            self._database.execute(f"create view {_quoted(topic)} as {_select(kinds, ' union all '.join(parts))}")
            schema, dot, name = topic.partition(".")
            if dot and schema and name:  # orders.eu without quotes
                self._database.execute(f"create schema if not exists {_quoted(schema)}")
                self._database.execute(f"create view {_quoted(schema)}.{_quoted(name)} as from main.{_quoted(topic)}")

    @contextmanager
    def query(self, sql: str, hint: Callable[[], str] = str) -> Iterator[tuple[list[str], Iterator[list[Any]]]]:
        """Give the columns and the rows of a result, with the values that JSON has. Raises `ConfigError`.

        `hint` gives what is added to the complaint about a table that is not there.
        """
        with self._explained(hint):
            result = self._database.sql(sql)
            yield ([], iter(())) if result is None else (result.columns, _rows(result))

    @contextmanager
    def _explained(self, hint: Callable[[], str] = str) -> Iterator[None]:
        try:
            yield
        except duckdb.Error as error:
            for rows in self._live:
                if rows.failure is not None:
                    raise rows.failure from None
            kind, _, text = str(error).partition(": ")
            if isinstance(error, duckdb.CatalogException) and "does not exist" in text:
                text = text.partition("\n")[0].rstrip("!") + hint()
            if isinstance(error, duckdb.BinderException) and "Referenced column" in text:
                text += "\n(DuckDB's SQL puts a text in single quotes: 'NL'. A name may be in double quotes.)"
            # the error itself would keep the database, which complains when Python ends before it
            raise ConfigError(f"sql: {text or kind}") from None

    def close(self) -> None:
        """Forget everything."""
        self._database.close()


def _tables(tree: Any) -> Iterator[str]:
    """Yield the names of the tables in a query's tree."""
    if isinstance(tree, dict):
        if tree.get("type") == "BASE_TABLE":
            yield ".".join(filter(None, (tree["catalog_name"], tree["schema_name"], tree["table_name"])))
        tree = list(tree.values())
    for each in tree if isinstance(tree, list) else ():
        yield from _tables(each)


def _rows(result: Any) -> Iterator[list[Any]]:
    for batch in result.to_arrow_reader(_AT_ONCE):
        columns = [column.to_pylist(maps_as_pydicts="lossy") for column in batch.columns]
        for row in zip(*columns, strict=True):
            yield [_plain(value) for value in row]


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() and value.as_tuple().exponent == 0 else float(value)
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value)


def _select(kinds: Mapping[str, Kind], rows: str) -> str:
    """Return the query of a topic's view: its fields, or the body as text where there are none."""
    about = ", ".join(f"{column} as {_quoted(name)}" for name, column in ABOUT.items())
    if not kinds:
        return f"select coalesce(try(decode(body)), body::VARCHAR) as body, {about} from ({rows})"
    # DuckDB would round 5.7 in a column of whole numbers: these are taken as texts first
    types = {name: "VARCHAR" if kind == json_fields.INTEGER else _type(kind) for name, kind in kinds.items()}
    parsed = f"select *, try(from_json(try(decode(body)), {_literal(json.dumps(types))})) as _parsed from ({rows})"
    fields = ", ".join(f"{_field(name, kind)} as {_quoted(name)}" for name, kind in kinds.items())
    return f"select {fields}, {about} from ({parsed})"


def _field(name: str, kind: Kind) -> str:
    value = f"_parsed.{_quoted(name)}"
    if kind != json_fields.INTEGER:
        return value
    return f"case when regexp_full_match({value}, '-?[0-9]+') then try_cast({value} as BIGINT) end"


def _type(kind: Kind) -> Any:
    """Return a type as DuckDB's `from_json` wants it."""
    if isinstance(kind, dict):
        return {name: _type(each) for name, each in kind.items()}
    if isinstance(kind, list):
        return [_type(kind[0])]
    return "VARCHAR" if kind == json_fields.TEXT else kind.upper()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
