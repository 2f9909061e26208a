"""A remote log in a table of PostgreSQL."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import psycopg
from psycopg import errors, sql

from lapwing.errors import ConfigError, RemoteFailed

TABLE: Final = "lapwing_remote"
_CONNECT: Final = 5  # seconds
_OPTIONS: Final = "-c statement_timeout=60000 -c lock_timeout=10000"  # ms; the caller tries again


class PostgreSql:
    """A table with a row per object, created with the first one. A name is its primary key."""

    def __init__(self, url: str) -> None:
        """Raises `ConfigError`."""
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        table = query.pop("table", TABLE)
        self._table = sql.Identifier(*table.split("."))
        self._url = _url(parts.netloc, parts.path, query)
        login, _, hosts = parts.netloc.rpartition("@")
        user = login.partition(":")[0]
        shown = {name: value for name, value in query.items() if name != "password"}
        self.place = _url(f"{user}@{hosts}" if user else hosts, parts.path, shown | {"table": table})
        self._connection: psycopg.Connection[Any] | None = None
        try:
            psycopg.conninfo.conninfo_to_dict(self._url)
        except psycopg.Error as error:
            raise ConfigError(f"{self.place}: {_line(error)}") from error
        if not table or len(table.split(".")) > 2:
            raise ConfigError(f"{self.place}: {table!r} is no name of a table")

    def create(self, name: str, *data: bytes) -> bool:
        """Insert a row unless there is one of that name; a commit that waits for no disk is not accepted."""
        with self._running(name) as connection:
            values = name, b"".join(data)
            text = self._sql("INSERT INTO {} (name, data) VALUES (%s, %s) ON CONFLICT (name) DO NOTHING")
            try:
                return connection.execute(text, values, binary=True).rowcount == 1
            except errors.UndefinedTable:
                self._make_table(connection)
                return connection.execute(text, values, binary=True).rowcount == 1

    def _make_table(self, connection: "psycopg.Connection[Any]") -> None:
        columns = 'name text COLLATE "C" PRIMARY KEY, data bytea NOT NULL'
        try:
            connection.execute(self._sql("CREATE TABLE IF NOT EXISTS {} (" + columns + ")"))
        except (errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateObject):  # by another process just now
            return

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a row."""
        with self._running(name) as connection:
            row = self._rows(connection, "SELECT data FROM {} WHERE name = %s", name)
            return bytes(row[0][0]) if row else None

    def find(self, prefix: str, after: str = "") -> Iterator[tuple[str, int]]:
        """Yield the names of rows."""
        with self._running(prefix) as connection:
            text = "SELECT name, length(data) FROM {} WHERE name > %s AND name < %s ORDER BY name"
            found = self._rows(connection, text, max(after, f"{prefix}/"), f"{prefix}0")  # 0 follows /
        yield from found

    def delete(self, names: Sequence[str]) -> None:
        """Delete rows."""
        with self._running(names[0] if names else "") as connection:
            self._rows(connection, "DELETE FROM {} WHERE name = ANY(%s) RETURNING name", [*names])

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _rows(self, connection: "psycopg.Connection[Any]", text: str, *values: object) -> list[Any]:
        try:
            return connection.execute(self._sql(text), values, binary=True).fetchall()
        except errors.UndefinedTable:
            return []

    def _sql(self, text: str) -> sql.Composed:
        return sql.SQL(text).format(self._table)

    @contextmanager
    def _running(self, name: str) -> "Iterator[psycopg.Connection[Any]]":
        """Yield a connection; after an error of PostgreSQL it is closed, and the next call opens another."""
        try:
            if self._connection is None or self._connection.closed:
                self._connection = psycopg.connect(
                    self._url, autocommit=True, connect_timeout=_CONNECT, options=_OPTIONS, application_name="lapwing"
                )
                # with these a commit may be lost; all others wait for the disk, and for standbys where there are any
                if self._connection.execute("SHOW synchronous_commit").fetchone() in (("off",), ("local",)):
                    self._connection.execute("SET synchronous_commit = on")
            yield self._connection
        except psycopg.Error as error:
            self.close()
            raise RemoteFailed(f"{self.place}: {name}: {_line(error)}") from error


def _url(netloc: str, path: str, query: dict[str, str]) -> str:
    return f"postgresql://{netloc}{path}" + (f"?{urlencode(query, safe='/')}" if query else "")


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
