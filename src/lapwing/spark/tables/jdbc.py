"""A table in a database. The rows of a batch and the batch's number are committed in one transaction.

Spark's own writer commits each of its tasks by itself. So it writes a batch into a staging table, and one statement
then copies that into the table, in the transaction that also records the batch.
"""

import logging
import re
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, StructType, VariantType
from pyspark.sql.window import Window

from lapwing.errors import ConfigError, LapwingError
from lapwing.spark.failures import complaint
from lapwing.spark.pipelines.run.context import RunContext
from lapwing.spark.pipelines.settings.kind_settings import TableSettings
from lapwing.spark.tables.stores import TableStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

ORDER: Final = ("_order_timestamp", "_order_sequence")  # columns by which the last row of a key is found
BATCHES: Final = "lapwing_batches"  # the table that records which batch of which query was added last
_UPSERTS: Final = ("jdbc:postgresql:", "jdbc:sqlite:")  # databases that know ON CONFLICT
_PAUSE: Final = 2.0
_STAGINGS: Final = 3  # attempts to stage a batch with each row once
_AWAY: Final = ("08", "57P")  # SQL states: connection exceptions, and a server that shuts down or starts
_SQLITE_TYPES: Final = {
    "long": "INTEGER", "integer": "INTEGER", "short": "INTEGER", "byte": "INTEGER", "boolean": "INTEGER",
    "double": "REAL", "float": "REAL", "binary": "BLOB",
}  # fmt: skip
# types of PostgreSQL that hold all values of another one
_WIDER: Final = {
    "int2": ("int4", "int8", "numeric", "float8"), "int4": ("int8", "numeric", "float8"), "int8": ("numeric",),
    "float4": ("float8",), "date": ("timestamp", "timestamptz"),
}  # fmt: skip
_NESTED: Final = (ArrayType, MapType, StructType, VariantType)

Result = TypeVar("Result")


class JdbcStore(TableStore):
    """A table of a database, by JDBC."""

    def __init__(self, settings: TableSettings, context: RunContext) -> None:
        super().__init__(settings, context)
        self._jvm: Any = context.spark._jvm
        self._driver = settings.store_options.get("driver") or _driver_of(settings.url)
        self._staging = identifier(settings.table, settings.name, "staging")

    def open(self, schema: StructType) -> None:
        """Connect, create the table that records batches, and fit the table to the rows; raises `ConfigError`."""
        if self._settings.key and not self._settings.url.startswith(_UPSERTS):
            raise ConfigError(
                f"{self._settings.name}: key: only PostgreSQL and SQLite replace rows; leave key out to add rows"
            )
        try:
            self._patiently(self._create_batches)
            foreign = not self._settings.key and self._patiently(self._has_other_query)
            self._patiently(lambda: self._fit(schema))
        except LapwingError as error:
            raise ConfigError(f"{self._settings.name}: url: {error}") from error
        if foreign:
            name, table = self._settings.name, self._settings.table
            raise ConfigError(
                f"{name}: {table} has rows that were added from another checkpoint, and would have them twice. To "
                f"start over: delete from {table}; delete from {BATCHES} where pipeline = {_quoted(name)}. Or set key, "
                "by which a message replaces its row"
            )

    def _create_batches(self) -> None:
        with self._transaction() as run:
            run(
                f"create table if not exists {BATCHES} "
                "(query varchar(64) primary key, batch bigint not null, pipeline varchar(200))"
            )

    def _has_other_query(self) -> bool:
        """Return whether a query with another checkpoint has added rows for this pipeline."""
        began = "" if self._context.checkpoint.new else self._context.checkpoint.query()
        return self._number(
            f"select count(*) from {BATCHES} where pipeline = {_quoted(self._settings.name)} "
            f"and query <> {_quoted(began)}"
        ) > 0  # fmt: skip

    def _fit(self, schema: StructType) -> None:
        """Add the columns that the table lacks and widen those that are too narrow; raises `ConfigError` for others.

        An empty staging table shows what the database makes of the columns' types. It is the database, too, that finds
        whether they can be copied.
        """
        held = self._types(self._settings.table)
        if held is None:
            return
        self._stage(self._prepared(self._context.spark.createDataFrame([], schema)))
        given = self._types(self._staging) or {}
        added = {column: kind for column, kind in given.items() if column not in held}
        widened = {column: kind for column, kind in given.items() if kind in _WIDER.get(held.get(column, ""), ())}
        for column in given.keys() - added.keys() - widened.keys():
            self._check_fits(column, held[column], given[column])
        name, table = self._settings.name, self._settings.table
        with self._transaction() as run:
            for column, kind in added.items():
                logger.warning("%s: %s gets the column %s %s", name, table, column, kind)
                run(f"alter table {table} add column {self._quote(column)} {kind}")
            for column, kind in widened.items():
                logger.warning("%s: column %s of %s was %s and becomes %s", name, column, table, held[column], kind)
                run(f"alter table {table} alter column {self._quote(column)} type {kind}")
            run(f"drop table {self._staging}")

    def _check_fits(self, column: str, held: str, given: str) -> None:
        """Have the database refuse, before any batch, to copy a column; raises `ConfigError`."""
        quoted, table = self._quote(column), self._settings.table
        try:
            with self._transaction() as run:
                run(f"insert into {table} ({quoted}) select {quoted} from {self._staging} where 1 = 0")
        except Py4JJavaError as error:
            if _is_away(error):
                raise
            setting = "columns" if self._settings.columns else "schema"
            raise ConfigError(
                f"{self._settings.name}: {setting}: {column} is {held} in the table {table} and would be {given}; "
                f"give it the old type here, or another name in columns, or alter the table ({_reason(error)})"
            ) from error

    def _types(self, table: str) -> dict[str, str] | None:
        """Return the names of the columns' types in the database; None where there is no such table."""
        with closing(self._connect()) as connection:
            statement = connection.createStatement()
            try:
                found = statement.executeQuery(f"select * from {table} where 1 = 0").getMetaData()
            except Py4JJavaError as error:
                if _is_away(error):
                    raise
                return None
            columns = range(1, found.getColumnCount() + 1)
            return {str(found.getColumnName(at)): str(found.getColumnTypeName(at)).lower() for at in columns}

    def has(self, query: str, batch: int) -> bool:
        return self._patiently(lambda: self._last_batch(query)) >= batch

    def _last_batch(self, query: str) -> int:
        return self._number(f"select batch from {BATCHES} where query = {_quoted(query)}")

    def _number(self, query: str) -> int:
        """Return the first number of the result, -1 if there is none."""
        with closing(self._connect()) as connection:
            found = connection.createStatement().executeQuery(query)
            return int(found.getLong(1)) if found.next() else -1

    def add(self, rows: "DataFrame", query: str, batch: int) -> int:
        prepared = self._prepared(rows)
        expected = prepared.count()

        def add() -> int:
            if self._last_batch(query) >= batch:  # the answer to an earlier attempt was lost
                return 0
            self._stage_whole(prepared, expected)
            return self._copy(prepared.columns, query, batch)

        return self._patiently(add)

    def _prepared(self, rows: "DataFrame") -> "DataFrame":
        """Return the rows as a database takes them: nested values as JSON, and of each key the last one."""
        for field in rows.schema.fields:
            if isinstance(field.dataType, _NESTED):
                rows = rows.withColumn(field.name, F.to_json(F.col(f"`{field.name}`")))
        if not self._settings.key:
            return rows
        keys = [F.col(f"`{name}`") for name in self._settings.key]
        newest = Window.partitionBy(*keys).orderBy(*(F.col(name).desc() for name in ORDER))
        ranked = rows.withColumn("_order_rank", F.row_number().over(newest))
        return ranked.where("_order_rank = 1").drop("_order_rank", *ORDER)

    def _stage_whole(self, rows: "DataFrame", expected: int) -> None:
        """Write the rows into the staging table, each once.

        Each task of Spark commits by itself. One that is lost after that, or runs twice (`spark.speculation`), writes
        its rows again.
        """
        for _ in range(_STAGINGS):
            self._stage(rows)
            staged = self._number(f"select count(*) from {self._staging}")
            if staged == expected:
                return
            logger.warning("%s: %s rows were staged instead of %s; again", self._settings.name, staged, expected)
        raise LapwingError(
            f"{self._settings.table}: {staged} rows of a batch were staged instead of {expected}; "
            "is spark.speculation on? Switch it off"
        )

    def _stage(self, rows: "DataFrame") -> None:
        options = {**self._settings.store_options, "url": self._settings.url, "dbtable": self._staging}
        if self._driver:
            options["driver"] = self._driver
        if self._settings.user:
            options |= {"user": self._settings.user, "password": self._settings.password}
        mode = "overwrite"
        if self._settings.url.startswith("jdbc:sqlite:"):
            self._create_for_sqlite(rows.schema)
            rows, mode = rows.coalesce(1), "append"  # it has one writer at a time
        rows.write.format("jdbc").options(**options).mode(mode).save()

    def _create_for_sqlite(self, schema: StructType) -> None:
        """Create the staging table; Spark knows no SQLite, and takes a missing table for an error."""
        columns = [
            f"{self._quote(field.name)} {_SQLITE_TYPES.get(field.dataType.typeName(), 'TEXT')}"
            for field in schema.fields
        ]
        with self._transaction() as run:
            run(f"drop table if exists {self._staging}")
            run(f"create table {self._staging} ({', '.join(columns)})")

    def _copy(self, columns: list[str], query: str, batch: int) -> int:
        """Copy the staged rows and record the batch, in one transaction; return how many rows were added."""
        quote = self._quote
        names = ", ".join(map(quote, columns))
        table, staging = self._settings.table, self._staging
        with self._transaction() as run:
            run(f"create table if not exists {table} as select * from {staging} where 1 = 0")
            conflict = ""
            if key := self._settings.key:
                index = identifier(table, self._settings.name, "key")
                keys = ", ".join(map(quote, key))
                run(f"create unique index if not exists {index} on {table} ({keys})")
                rest = [f"{quote(name)} = excluded.{quote(name)}" for name in columns if name not in key]
                conflict = f" on conflict ({keys}) do " + (f"update set {', '.join(rest)}" if rest else "nothing")
            added = run(f"insert into {table} ({names}) select {names} from {staging} where 1 = 1{conflict}")
            values = f"{_quoted(query)}, {batch}, {_quoted(self._settings.name)}"
            if not run(f"update {BATCHES} set batch = {batch} where query = {_quoted(query)}"):
                run(f"insert into {BATCHES} (query, batch, pipeline) values ({values})")
            run(f"drop table {staging}")
        return added

    # --- the database ------------------------------------------------------------------------------------------

    def _connect(self) -> Any:
        registry = self._jvm.org.apache.spark.sql.execution.datasources.jdbc.DriverRegistry
        properties = self._jvm.java.util.Properties()
        if self._settings.user:
            properties.setProperty("user", self._settings.user)
            properties.setProperty("password", self._settings.password)
        if self._driver:
            registry.register(self._driver)  # a jar of spark.jars is not seen by Java's own registry
        return self._jvm.java.sql.DriverManager.getConnection(self._settings.url, properties)

    @contextmanager
    def _transaction(self) -> Iterator[Callable[[str], int]]:
        """Give a function that runs a statement and returns how many rows it changed; all are committed, or none."""
        with closing(self._connect()) as connection:
            connection.setAutoCommit(False)
            statement = connection.createStatement()
            try:
                yield lambda text: int(statement.executeUpdate(text))
                connection.commit()
            except BaseException:
                connection.rollback()
                raise

    def _quote(self, name: str) -> str:
        dialects = self._jvm.org.apache.spark.sql.jdbc.JdbcDialects
        return str(dialects.get(self._settings.url).quoteIdentifier(name))

    def _patiently(self, step: Callable[[], Result]) -> Result:
        """Return the result of `step`; while the database is away, repeat it for the time of `retry`."""
        deadline = time.monotonic() + self._settings.retry
        while True:
            try:
                return step()
            except (Py4JJavaError, PySparkException) as error:
                if not _is_away(error) or time.monotonic() + _PAUSE > deadline:
                    raise LapwingError(f"{self._settings.table}: {_reason(error)}") from error
                logger.warning("%s: the database is away: %s", self._settings.name, _reason(error))
                time.sleep(_PAUSE)


def identifier(table: str, pipeline: str, purpose: str) -> str:
    """Return a name that no other pipeline has, in letters that need no quotes and short enough for PostgreSQL."""
    readable = re.sub(r"\W", "_", f"{table}__{pipeline}", flags=re.ASCII)[:40]
    return f"{readable}_{zlib.crc32(f'{table} {pipeline}'.encode()):08x}_{purpose}"


def _driver_of(url: str) -> str:
    known = {"jdbc:postgresql:": "org.postgresql.Driver", "jdbc:sqlite:": "org.sqlite.JDBC"}
    return next((driver for start, driver in known.items() if url.startswith(start)), "")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _sql_errors(error: BaseException) -> Iterator[Any]:
    """Yield the SQL exceptions behind an error of Java."""
    java = getattr(error, "java_exception", None)
    while java is not None:
        if hasattr(java, "getSQLState") and "SQLException" in _ancestry(java):
            yield java
        java = java.getCause()


def _ancestry(java: Any) -> str:
    names, kind = [], java.getClass()
    while kind is not None:
        names.append(str(kind.getName()))
        kind = kind.getSuperclass()
    return " ".join(names)


def _is_away(error: BaseException) -> bool:
    states = [str(found.getSQLState() or "") for found in _sql_errors(error)]
    return any(state.startswith(_AWAY) for state in states) or "Connection refused" in str(error)


def _reason(error: BaseException) -> str:
    for found in _sql_errors(error):
        return str(found.getMessage()).splitlines()[0]
    if "ClassNotFoundException" in str(error):
        return f"{complaint(error)}; name the jar of the driver in jars"
    return complaint(error)
