"""Tables from Avro and Protobuf, with packages of Spark that are not part of PySpark.

    python tests/soak/spark_formats.py --jars spark-avro.jar,spark-protobuf.jar [--only avro,protobuf]

Each format has messages that can be read, messages that cannot, and messages that are all nulls or defaults. Every
one has to be in the table or among the rejects, once. The jars have to be of the same version as PySpark; that of
Protobuf needs a `protobuf-java` beside it unless it brings its own. Exits with 1 if something is not so.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "spark"))

from deltalake import DeltaTable
from pipeline_runs import Runs

from conftest import Broker
from daemons import nsqd
from lapwing.spark.session import local_session

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": ["null", "long"]}, {"name": "country", "type": ["null", "string"]}],
}
Row = tuple[int | None, str | None]


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def text(value: str) -> bytes:
    return varint(len(value)) + value.encode()


def avro(row: Row) -> bytes:
    """Return a row as Avro writes it: a branch of each union, then its value, numbers in zigzag."""
    number, country = row
    first = b"\0" if number is None else b"\2" + varint(number << 1)
    return first + (b"\0" if country is None else b"\2" + varint(len(country) << 1) + country.encode())


def protobuf(row: Row) -> bytes:
    """Return a row as Protobuf writes it: field 1 a number, field 2 a string; what is missing is left out."""
    number, country = row
    first = b"" if number is None else b"\x08" + varint(number)
    return first + (b"" if country is None else b"\x12" + text(country))


def descriptor_set() -> bytes:
    """Return the descriptor set of `message Order { optional int64 id = 1; optional string country = 2; }`."""

    def field(name: str, number: int, kind: int) -> bytes:
        return b"\x0a" + text(name) + b"\x18" + varint(number) + b"\x20\x01" + b"\x28" + varint(kind)

    def nested(tag: int, content: bytes) -> bytes:
        return bytes([tag]) + varint(len(content)) + content

    message = b"\x0a" + text("Order") + nested(0x12, field("id", 1, 3)) + nested(0x12, field("country", 2, 9))
    return nested(0x0A, b"\x0a" + text("order.proto") + nested(0x22, message))


GOOD: list[Row] = [(1, "nl"), (2, None), (None, "de"), (300, "fr")]
FORMATS = {
    # all nulls is a message of two bytes in Avro; a Protobuf message of nothing is empty, and no message of a queue
    "avro": (avro, [*GOOD, (None, None)], [b"\x05", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\2"]),
    "protobuf": (protobuf, GOOD, [b"\x0f", b"\x12\x7fshort", b"\x08"]),
}


def check(name: str, scratch: Path, runs: Runs, broker: Broker) -> str:
    """Return what is wrong with a format, or nothing."""
    encode, rows, broken = FORMATS[name]
    definition = scratch / f"order.{name}"
    settings = [f"topics={name}", f"name={name}", f"format={name}", f"definition={definition}", "partition=none"]
    if name == "avro":
        definition.write_text(json.dumps(ORDER))
    else:
        definition.write_bytes(descriptor_set())
        settings.append("message=Order")
    broker.publish(name, *map(encode, rows), *broken)
    runs.once("table", *settings)
    found = DeltaTable(str(runs.data.parent / name)).to_pyarrow_table().to_pylist()
    rejected = [(m["headers"]["reason"], m["headers"]["origin-sequence"]) for m in broker.messages(f"{name}.rejected")]
    wanted = [(f"not {name.capitalize()} of this definition", str(len(rows) + index)) for index in range(len(broken))]
    if sorted((row["id"], row["country"]) for row in found if row["id"]) != sorted(row for row in rows if row[0]):
        return f"the rows are {found}"
    if len(found) != len(rows) or sorted(rejected) != wanted:
        return f"{len(found)} rows of {len(rows)}, rejects {rejected}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jars", required=True)
    parser.add_argument("--only", default="avro,protobuf")
    arguments = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="lapwing-formats-"))
    spark = local_session("formats", cores=2, conf={"spark.jars": arguments.jars, "spark.sql.shuffle.partitions": "1"})
    good = True
    with nsqd("--node-id=1") as daemon:
        broker = Broker(daemon)
        runs = Runs(spark, broker, scratch)
        for name in arguments.only.split(","):
            wrong = check(name, scratch, runs, broker)
            print(f"{name}: {wrong or 'every message is a row or a reject, once'}", flush=True)
            good = good and not wrong
    spark.stop()
    shutil.rmtree(scratch, ignore_errors=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
