"""The range of PySpark versions: what older ones lack is made up for, or refused with the reason."""

import pytest
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, LongType, MapType, StringType, StructField, StructType

from lapwing.errors import ConfigError, LapwingError
from lapwing.spark import _pyspark_4_0 as pyspark_40
from lapwing.spark import _pyspark_4_1 as pyspark_41
from lapwing.spark.data_source import LapwingSource, columns
from lapwing.spark.pipelines.run.runner import PipelineRun, RunRequest
from lapwing.spark.pipelines.settings import spec

SCHEMA = StructType([
    StructField("body", BinaryType()), StructField("topic", StringType()), StructField("defer_ms", LongType()),
    StructField("headers", MapType(StringType(), StringType())),
])  # fmt: skip


class Written(DataSourceStreamWriter):
    """Remembers what it was asked."""

    def __init__(self):
        self.calls = []

    def write(self, iterator):
        self.calls.append([row for batch in iterator for row in batch.to_pylist()])
        return WriterCommitMessage()

    def commit(self, messages, batchId):
        self.calls.append(("commit", batchId))

    def abort(self, messages, batchId):
        self.calls.append(("abort", batchId))


def test_rows_of_an_old_spark_reach_the_writer_as_arrow_batches(monkeypatch):
    monkeypatch.setattr(pyspark_40, "_ROWS", 2)
    written = Written()
    writer = pyspark_40.RowWriter(written, SCHEMA)
    rows = [(bytearray(b"a"), "t", 5, {"k": "v"}), (bytearray(b"b"), None, None, None), (b"c", "u", 0, {})]
    message = writer.write(iter(rows))
    writer.commit([message], 7)
    writer.abort([message], 8)

    assert written.calls == [
        [
            {"body": b"a", "topic": "t", "defer_ms": 5, "headers": [("k", "v")]},
            {"body": b"b", "topic": None, "defer_ms": None, "headers": None},
            {"body": b"c", "topic": "u", "defer_ms": 0, "headers": []},
        ],
        ("commit", 7), ("abort", 8),
    ]  # fmt: skip


def test_a_stream_from_a_topic_is_refused_where_spark_does_not_tell_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(pyspark_41, "HAS_STREAMS", False)
    options = {"nsqd": "127.0.0.1:1", "topic": "orders"}

    with pytest.raises(LapwingError, match=r"streams from topics need PySpark 4\.2 or later"):
        LapwingSource(options).streamReader(columns(options))
    run = PipelineRun(spec.load("archive", ["retry=0s"]), RunRequest(tmp_path))
    with pytest.raises(ConfigError, match=r"^archive: streams from topics need PySpark 4\.2"):
        run.check()
