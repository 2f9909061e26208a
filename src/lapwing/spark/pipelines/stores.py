"""The stores of a `table` pipeline: they take each batch once, whatever dies in between."""

from typing import TYPE_CHECKING, Any, Protocol

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from lapwing.errors import ConfigError
from lapwing.spark.failures import complaint
from lapwing.spark.pipelines.compact import MergeSettings, compact
from lapwing.spark.pipelines.files import open_files
from lapwing.spark.pipelines.manifest_table import ManifestTable, count_rows
from lapwing.spark.pipelines.pipeline_settings import TableSettings
from lapwing.spark.pipelines.run_context import RunContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter

PARTITIONS: dict[str, tuple[str, ...]] = {"hour": ("date", "hour"), "day": ("date",), "month": ("month",), "none": ()}


class TableStore(Protocol):
    """A table that takes batches of rows."""

    def open(self) -> None:
        """Check that rows can be written; raises `ConfigError`."""
        ...

    def has(self, query: str, batch: int) -> bool:
        """Return whether this batch of this query was added before."""
        ...

    def add(self, rows: "DataFrame", query: str, batch: int) -> int:
        """Add a batch and return how many rows it had; added again it changes nothing."""
        ...

    def finish(self) -> None:
        """Tidy up after a run that ended well."""
        ...

    def close(self) -> None:
        """Let others write here."""
        ...


def store_of(settings: TableSettings, context: RunContext) -> TableStore:
    """Return the store that the settings name."""
    if settings.store == "jdbc":
        from lapwing.spark.pipelines.jdbc_store import JdbcStore

        return JdbcStore(settings, context)
    kinds: dict[str, type[ParquetStore] | type[DeltaStore] | type[IcebergStore]] = {
        "parquet": ParquetStore, "delta": DeltaStore, "iceberg": IcebergStore,
    }  # fmt: skip
    return kinds[settings.store](settings, context)


class ParquetStore:
    """Parquet files with a manifest, like an archive."""

    def __init__(self, settings: TableSettings, context: RunContext) -> None:
        self._settings = settings
        self._context = context
        self._files = open_files(context.paths.out, context.spark)
        self._table = ManifestTable(self._files, count_rows(context.spark))
        self._partitions = PARTITIONS[settings.partition]

    def open(self) -> None:
        """Take the directory; refuse rows of another checkpoint, which could be there twice."""
        self._table.open()
        began = "" if self._context.checkpoint.new else self._context.checkpoint.query()
        if self._table.contents.query not in ("", began):
            self._files.release()
            raise ConfigError(
                f"{self._settings.name}: {self._table.root} holds rows that were written from another checkpoint, and "
                "would hold them twice. `lapwing pipeline reset` with --with-output starts over, or choose another out"
            )
        if began:
            remedy = f"`lapwing pipeline reset {self._settings.name} --with-output` starts over"
            self._table.check_has(began, self._context.checkpoint.finished, remedy)

    def has(self, query: str, batch: int) -> bool:
        return self._table.has(query, batch)

    def add(self, rows: "DataFrame", query: str, batch: int) -> int:
        def save(place: str) -> None:
            self._writer(rows).partitionBy(*self._partitions).parquet(place)

        scope = {"topics": self._settings.topics, "pattern": self._settings.pattern}
        added = self._table.add(query, batch, self._context.checkpoint.offsets(batch), save, scope=scope)
        compact(rows.sparkSession, self._table, self._merging())
        return added

    def _writer(self, rows: "DataFrame") -> "DataFrameWriter":
        return rows.write.options(compression=self._settings.compression, **self._settings.store_options)

    def _merging(self) -> MergeSettings:
        settings = self._settings
        return MergeSettings(settings.compact_after, settings.file_bytes, (), self._writer, settings.compression)

    def finish(self) -> None:
        compact(self._context.spark, self._table, self._merging(), all_due=True)

    def close(self) -> None:
        self._files.release()


class DeltaStore:
    """A Delta table; Delta itself remembers the last batch of each query."""

    def __init__(self, settings: TableSettings, context: RunContext) -> None:
        self._settings = settings
        self._context = context

    def open(self) -> None:
        """Fail early where the package is missing."""
        _check_format(self._context, "delta", f"{self._settings.name}: store: delta", "io.delta:delta-spark_2.13")

    def has(self, query: str, batch: int) -> bool:
        return False  # Delta passes over a transaction that it has seen

    def add(self, rows: "DataFrame", query: str, batch: int) -> int:
        once = {"txnAppId": f"lapwing-{query}", "txnVersion": str(batch), **self._settings.store_options}
        writer = rows.write.format("delta").mode("append").options(**once)
        writer.partitionBy(*PARTITIONS[self._settings.partition]).save(self._context.paths.out)
        return rows.count()

    def finish(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class IcebergStore:
    """An Iceberg table; the query and the batch are kept with each snapshot."""

    def __init__(self, settings: TableSettings, context: RunContext) -> None:
        self._settings = settings
        self._context = context

    def open(self) -> None:
        """Create the catalog's view of the table, or fail early where the package is missing."""
        package = "org.apache.iceberg:iceberg-spark-runtime"
        _check_format(self._context, "iceberg", f"{self._settings.name}: store: iceberg", package)

    def has(self, query: str, batch: int) -> bool:
        name = self._settings.table
        if not self._context.spark.catalog.tableExists(name):
            return False
        seen = self._context.spark.sql(
            f"select max(cast(summary['lapwing-batch'] as bigint)) from {name}.snapshots "
            f"where summary['lapwing-query'] = '{query}'"
        ).first()
        return seen is not None and seen[0] is not None and int(seen[0]) >= batch

    def add(self, rows: "DataFrame", query: str, batch: int) -> int:
        marks = {"snapshot-property.lapwing-query": query, "snapshot-property.lapwing-batch": str(batch)}
        writer: Any = rows.writeTo(self._settings.table).options(**marks, **self._settings.store_options)
        if self._context.spark.catalog.tableExists(self._settings.table):
            writer.append()
        else:
            columns = [rows[name] for name in PARTITIONS[self._settings.partition]]
            (writer.using("iceberg").partitionedBy(*columns) if columns else writer.using("iceberg")).create()
        return rows.count()

    def finish(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def _check_format(context: RunContext, name: str, where: str, package: str) -> None:
    jvm: Any = context.spark._jvm
    lookup = jvm.org.apache.spark.sql.execution.datasources.DataSource
    try:
        lookup.lookupDataSource(name, context.spark._jsparkSession.sessionState().conf())
    except (Py4JJavaError, PySparkException) as error:
        raise ConfigError(
            f"{where}: {complaint(error)}; bring the package, such as --conf spark.jars.packages={package}:VERSION"
        ) from error
