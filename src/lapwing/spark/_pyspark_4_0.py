"""The parts of later versions of PySpark that 4.0 lacks: Arrow batches for the writers of streams."""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as DataSourceStreamArrowWriter
    from pyspark.sql.types import StructType
else:
    DataSourceStreamArrowWriter = getattr(datasource, "DataSourceStreamArrowWriter", DataSourceStreamWriter)

IS_USED: Final = not hasattr(datasource, "DataSourceStreamArrowWriter")
_STREAMING: Final = "org.apache.spark.sql.execution.streaming"
CHECKPOINTS: Final = f"{_STREAMING}{'' if IS_USED else '.checkpointing'}.FileSystemBasedCheckpointFileManager"
_ROWS: Final = 10_000  # of one batch


class RowWriter(DataSourceStreamWriter):
    """Gives a writer of Arrow batches the rows that Spark 4.0 has for it."""

    def __init__(self, writer: DataSourceStreamWriter, schema: "StructType") -> None:
        self._writer = writer
        self._schema = schema

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self._writer.write(to_batches(iterator, self._schema))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._writer.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._writer.abort(messages, batchId)


def to_batches(rows: Iterator[Any], schema: "StructType") -> "Iterator[pa.RecordBatch]":
    """Yield the rows as Arrow batches."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    columns = to_arrow_schema(schema)
    while some := list(islice(rows, _ROWS)):
        values = [[row[index] for row in some] for index in range(len(columns))]
        arrays = [pa.array(_plain(each), field.type) for each, field in zip(values, columns, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=columns)


def _plain(values: list[Any]) -> list[Any]:
    return [list(value.items()) if isinstance(value, dict) else value for value in values]
