"""The stores of a `table` pipeline: they take each batch once, whatever dies in between."""

from abc import abstractmethod
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from lapwing.errors import ConfigError
from lapwing.spark.files import open_files
from lapwing.spark.pipelines.run.context import RunContext
from lapwing.spark.pipelines.settings.kind_settings import TableSettings
from lapwing.spark.tables.delta import DeltaOutput, TableFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter

PARTITIONS: dict[str, tuple[str, ...]] = {"hour": ("date", "hour"), "day": ("date",), "month": ("month",), "none": ()}

_FOREIGN = (
    "{place} holds rows that were written from another checkpoint, and would hold them twice. "
    "`lapwing pipeline reset` with --with-output starts over, or choose another out"
)


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


class DeltaStore(TableStore):
    """A Delta table."""

    def __init__(self, settings: TableSettings, context: RunContext) -> None:
        super().__init__(settings, context)

        def writer(rows: "DataFrame") -> "DataFrameWriter":
            return rows.write.options(compression=settings.compression, **settings.store_options)

        form = TableFormat(
            settings.compact_after, settings.file_bytes, settings.history, settings.compression, writer
        )  # fmt: skip
        self._table = DeltaOutput(context.paths.out, context, form, *PARTITIONS[settings.partition])

    def open(self, schema: StructType) -> None:
        """Open or create the table; refuse rows of another checkpoint, which could be there twice."""
        name = self._settings.name
        try:
            self._table.open(
                schema,
                foreign=_FOREIGN.format(place=self._table.root),
                remedy=f"`lapwing pipeline reset {name} --with-output` starts over",
                setting="columns" if self._settings.columns else "schema",
            )
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error

    def has(self, query: str, batch: int) -> bool:
        return self._table.has(query, batch)

    def add(self, rows: "DataFrame", query: str, batch: int) -> int:
        return self._table.add(rows, query, batch, self._context.checkpoint.offsets(batch))

    def finish(self) -> None:
        self._table.finish()


class ParquetStore(TableStore):
    """Plain Parquet files in a folder for each batch; a batch that is repeated replaces its folder."""

    def __init__(self, settings: TableSettings, context: RunContext) -> None:
        super().__init__(settings, context)
        self._files = open_files(context.paths.out, context.spark)

    def open(self, schema: StructType) -> None:
        """Refuse rows of another checkpoint, files that are gone, and columns whose type has changed."""
        name, checkpoint, root = self._settings.name, self._context.checkpoint, self._files.root
        if checkpoint.new and any(each.startswith("batch=") for each in self._files.names("")):
            raise ConfigError(f"{name}: {_FOREIGN.format(place=root)}")
        if checkpoint.finished >= 0 and not self._files.exists(_folder(checkpoint.finished)):
            raise ConfigError(
                f"{name}: {root} has no batch {checkpoint.finished}, which its checkpoint has finished. Is the disk "
                f"mounted, or were files moved? Bring them back, or `lapwing pipeline reset {name} --with-output`"
            )
        known: dict[str, str] = checkpoint.pins().get("columns", {})
        given = {field.name: field.dataType.simpleString() for field in schema.fields}
        for column, kind in given.items():
            if known.get(column, kind) != kind:
                raise ConfigError(
                    f"{name}: {'columns' if self._settings.columns else 'schema'}: {column} is {kind} and was "
                    f"{known[column]}, and files of both could not be read together; give it the old type here, or "
                    "another name"
                )
        checkpoint.pin(columns={**known, **given})

    def has(self, query: str, batch: int) -> bool:
        return False  # a batch that is there is replaced

    def add(self, rows: "DataFrame", query: str, batch: int) -> int:
        writer = rows.write.mode("overwrite").options(
            compression=self._settings.compression, **self._settings.store_options
        )
        writer.partitionBy(*PARTITIONS[self._settings.partition]).parquet(f"{self._files.root}/{_folder(batch)}")
        return rows.count()


def _folder(batch: int) -> str:
    return f"batch={batch}"
