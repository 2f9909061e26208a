"""The stores of a `table` pipeline: they take each batch once, whatever dies in between."""

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from lapwing.errors import ConfigError
from lapwing.spark.failures import complaint
from lapwing.spark.pipelines.batch_table import BatchTable
from lapwing.spark.pipelines.compact import MergeSettings
from lapwing.spark.pipelines.pipeline_settings import TableSettings
from lapwing.spark.pipelines.run_context import RunContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter

PARTITIONS: dict[str, tuple[str, ...]] = {"hour": ("date", "hour"), "day": ("date",), "month": ("month",), "none": ()}


class TableStore:
    """A table that takes batches of rows."""

    def __init__(self, settings: TableSettings, context: RunContext) -> None:
        self._settings = settings
        self._context = context

    @abstractmethod
    def open(self, schema: StructType) -> None:
        """Check that rows of this schema can be written, and alter the table for them; raises `ConfigError`."""

    @abstractmethod
    def has(self, query: str, batch: int) -> bool:
        """Return whether this batch of this query was added before."""

    @abstractmethod
    def add(self, rows: "DataFrame", query: str, batch: int) -> int:
        """Add a batch and return how many rows it had; added again it changes nothing."""

    def finish(self) -> None:
        """Tidy up after a run that ended well."""

    def close(self) -> None:
        """Let others write here."""

    def _check_package(self, package: str) -> None:
        """Raise `ConfigError` where the package of the store is missing."""
        session: Any = self._context.spark
        name = self._settings.store
        lookup = session._jvm.org.apache.spark.sql.execution.datasources.DataSource
        try:
            lookup.lookupDataSource(name, session._jsparkSession.sessionState().conf())
        except (Py4JJavaError, PySparkException) as error:
            raise ConfigError(
                f"{self._settings.name}: store: {name}: {complaint(error)}; "
                f"bring the package, such as --conf spark.jars.packages={package}:VERSION"
            ) from error


class ParquetStore(TableStore):
    """Parquet files with a manifest, like an archive."""

    def __init__(self, settings: TableSettings, context: RunContext) -> None:
        super().__init__(settings, context)

        def writer(rows: "DataFrame") -> "DataFrameWriter":
            return rows.write.options(compression=settings.compression, **settings.store_options)

        merging = MergeSettings(settings.compact_after, settings.file_bytes, (), settings.compression, writer)
        scope = {"topics": settings.topics, "pattern": settings.pattern}
        columns = PARTITIONS[settings.partition]
        self._table = BatchTable(context.paths.out, context, merging, *columns, scope=scope)

    def open(self, schema: StructType) -> None:
        """Take the directory; refuse rows of another checkpoint, which could be there twice."""
        name = self._settings.name
        self._table.open(
            foreign=f"{name}: {self._table.root} holds rows that were written from another checkpoint, and would hold "
            "them twice. `lapwing pipeline reset` with --with-output starts over, or choose another out",
            remedy=f"`lapwing pipeline reset {name} --with-output` starts over",
        )

    def has(self, query: str, batch: int) -> bool:
        return self._table.has(query, batch)

    def add(self, rows: "DataFrame", query: str, batch: int) -> int:
        return self._table.add_rows(rows, query, batch, self._context.checkpoint.offsets(batch))

    def finish(self) -> None:
        self._table.finish()

    def close(self) -> None:
        self._table.close()


class DeltaStore(TableStore):
    """A Delta table; Delta itself remembers the last batch of each query."""

    def open(self, schema: StructType) -> None:
        """Fail early where the package is missing."""
        self._check_package("io.delta:delta-spark_2.13")

    def has(self, query: str, batch: int) -> bool:
        return False  # Delta passes over a transaction that it has seen

    def add(self, rows: "DataFrame", query: str, batch: int) -> int:
        once = {"txnAppId": f"lapwing-{query}", "txnVersion": str(batch), **self._settings.store_options}
        writer = rows.write.format("delta").mode("append").options(**once)
        writer.partitionBy(*PARTITIONS[self._settings.partition]).save(self._context.paths.out)
        return rows.count()


class IcebergStore(TableStore):
    """An Iceberg table; the query and the batch are kept with each snapshot."""

    def open(self, schema: StructType) -> None:
        """Create the catalog's view of the table, or fail early where the package is missing."""
        self._check_package("org.apache.iceberg:iceberg-spark-runtime")

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
