"""Files of consumed messages, safe before they are finished; on a local disk or any file system that Arrow knows."""

import os
from array import array
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.fs as fs  # type: ignore[import-untyped]

from lapwing.spark.files import sync
from lapwing.spark.source.blocks import arrow_schema

_COLUMNS: Final = ["topic", "node", "sequence", "id", "timestamp", "attempts", "body"]
_SUFFIX: Final = ".arrow"


def names(directory: str) -> list[str]:
    """Return the files that are whole, in order."""
    system, path = _place(directory)
    found = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
    whole = (info.base_name for info in found if info.base_name.endswith(_SUFFIX))
    return sorted(name for name in whole if name[:20].isdigit())


def write_file(directory: str, name: str, topic: str, rows: list[tuple[int, int, str, bytes]]) -> None:
    """Keep messages (timestamp, attempts, id, body); on a local disk they survive a power loss from here on."""
    system, path = _place(directory)
    system.create_dir(path, recursive=True)
    draft = f"{path}/.{name}.{os.getpid()}"
    with system.open_output_stream(draft) as sink, pa.ipc.new_file(sink, arrow_schema(_COLUMNS)) as writer:
        writer.write_batch(_batch(topic, rows))
    if isinstance(system, fs.LocalFileSystem):
        sync(draft)
    system.move(draft, f"{path}/{name}")
    if isinstance(system, fs.LocalFileSystem):
        sync(path)


def read_file(directory: str, name: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, in these columns."""
    system, path = _place(directory)
    with system.open_input_file(f"{path}/{name}") as source, pa.ipc.open_file(source) as reader:
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number).select(columns)


def delete(directory: str, name: str) -> None:
    """Remove a file that is done with."""
    system, path = _place(directory)
    system.delete_file(f"{path}/{name}")


def _place(directory: str) -> tuple[Any, str]:
    if "://" in directory:
        system, path = fs.FileSystem.from_uri(directory)
        return system, path.rstrip("/")
    return fs.LocalFileSystem(), os.path.abspath(directory)


def _batch(topic: str, rows: list[tuple[int, int, str, bytes]]) -> pa.RecordBatch:
    schema = arrow_schema(_COLUMNS)
    count = len(rows)
    times = pa.array(array("q", [row[0] // 1000 for row in rows])).view(schema.field("timestamp").type)
    columns = [
        pa.repeat(pa.scalar(topic, pa.string()), count),
        pa.nulls(count, pa.int32()),  # only a log has nodes and sequences
        pa.nulls(count, pa.int64()),
        pa.array([row[2] for row in rows], pa.string()),
        times,
        pa.array([row[1] for row in rows], pa.int32()),
        pa.array([row[3] for row in rows], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
