"""The data source that Spark registers as `lapwing`: rows out of topics, rows into topics."""

from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from lapwing.errors import LapwingError
from lapwing.spark.options import SourceOptions, sink_options, source_options

if TYPE_CHECKING:
    from collections.abc import Mapping

COLUMNS: Final = (
    StructField("topic", StringType()),
    StructField("node", IntegerType()),
    StructField("sequence", LongType()),
    StructField("id", StringType()),
    StructField("timestamp", TimestampType()),
    StructField("attempts", IntegerType()),
    StructField("body", BinaryType()),
    StructField("headers", MapType(StringType(), StringType())),
    StructField("fields", MapType(StringType(), StringType())),
)


def columns(raw: "Mapping[str, str]") -> StructType:
    """Return the columns that are read under these options; wrong options are refused later."""
    wanted = {"includebody": "true"} | {name.lower(): value.strip().lower() for name, value in raw.items()}
    left_out = {name for name in ("headers", "fields", "body") if wanted.get(f"include{name}") != "true"}
    return StructType([field for field in COLUMNS if field.name not in left_out])


class LapwingSource(DataSource):
    """Topics of lapwing brokers (and, with `mode=subscribe`, of any NSQ server) as tables and streams.

    Spark builds this often and pickles it: it only holds the options.
    """

    @classmethod
    def name(cls) -> str:
        return "lapwing"

    def schema(self) -> StructType:
        return columns(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from lapwing.spark.source.batch_reader import FilteringReader, LogBatchReader

        options = self._read_options(schema, streaming=False)
        if options.push_filters and not hasattr(DataSourceReader, "pushFilters"):
            raise LapwingError("option pushFilters needs PySpark 4.1 or later")
        return (FilteringReader if options.push_filters else LogBatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from lapwing.spark import _pyspark_4_1 as pyspark_41

        if not pyspark_41.HAS_STREAMS:
            raise LapwingError(pyspark_41.NO_STREAMS)
        options = self._read_options(schema, streaming=True)
        if options.mode == "subscribe":
            from lapwing.spark.source.subscribe import SubscribeStreamReader

            return SubscribeStreamReader(options, schema)
        from lapwing.spark.source.stream_reader import LogStreamReader

        return LogStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from lapwing.spark.sink.writer import BatchWriter

        return BatchWriter(sink_options(self.options, streaming=False), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from lapwing.spark import _pyspark_4_0 as pyspark_40
        from lapwing.spark.sink.writer import StreamWriter

        writer = StreamWriter(sink_options(self.options, streaming=True), schema)
        return pyspark_40.RowWriter(writer, schema) if pyspark_40.IS_USED else writer

    def _read_options(self, schema: StructType, *, streaming: bool) -> SourceOptions:
        options = source_options(self.options, streaming=streaming)
        expected = columns(self.options)
        if schema != expected:
            raise ValueError(f"the columns are {expected.simpleString()}; a schema of one's own is not possible")
        return options
