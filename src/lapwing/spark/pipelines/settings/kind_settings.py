"""Settings of each kind of pipeline: the one description that files, `--set`, `init` and the documents share."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lapwing.spark.pipelines.settings import values as s
from lapwing.spark.pipelines.settings.values import setting

OWN_TOPICS: Final = "_lapwing"  # topics whose names begin so are ours, and left out where a pattern would take them in
BENCH_TOPICS: Final = "lapwing_bench_"  # topics of `lapwing bench`, which deletes them when it ends
ALL_TOPICS: Final = rf"(?!{OWN_TOPICS}|{BENCH_TOPICS})[^#]*"  # nor those that are gone with their last consumer
DEFAULT_TIME: Final = "_timestamp"  # of an event: when its message was published
_HISTORY: Final = "How long files that were merged away are kept, for readers and for time travel."
DEFAULT_NSQD: Final = ("127.0.0.1:4151",)


@dataclass(frozen=True, kw_only=True)
class PipelineSettings:
    """Settings of every pipeline."""

    name: str = setting(s.word, "", about="Name of the pipeline: its folder, its channel and what status shows.")
    nsqd: tuple[str, ...] = setting(
        s.addresses, (), about="HTTP addresses of the brokers.", example="[127.0.0.1:4151]"
    )
    lookupd: tuple[str, ...] = setting(
        s.addresses, (), about="HTTP addresses of nsqlookupd, instead of nsqd.", example="[127.0.0.1:4161]"
    )
    retry: float = setting(s.seconds, 300.0, about="How long a broker may be away before the pipeline fails.")
    options: Mapping[str, str] = setting(
        s.options, {}, about="Further options of the data source, such as tls or minPartitions.", example="{tls: true}"
    )

    @property
    def kind(self) -> str:
        return type(self).__name__.removesuffix("Settings").lower()


@dataclass(frozen=True, kw_only=True)
class StreamSettings(PipelineSettings):
    """Settings of every pipeline that reads topics as they grow."""

    topics: tuple[str, ...] = setting(s.topics, (), about="Topics to read.", example="[orders]")
    pattern: str = setting(s.pattern, "", about="All topics whose whole name matches, instead of topics.")
    channel: str = setting(s.channel, "", about="Channel that shows the pipeline's lag on the brokers (default: name).")
    start: str = setting(
        s.starting, "earliest",
        about="Where a pipeline without a checkpoint starts: earliest, latest, channel or a time.",
    )
    trigger: float = setting(s.seconds, 1.0, about="Time from the start of one batch to the start of the next.")
    max_messages: int = setting(s.count, 1_000_000, about="Most messages of one batch.")
    fail_on_data_loss: bool = setting(
        s.flag, True, about="Stop when messages are gone that were not read; false continues with what is there."
    )
    accept_loss: bool = setting(
        s.flag, False, about="Accept the messages that are gone when the pipeline starts; later losses stop it."
    )

    def reads(self, topic: str) -> bool:
        """Return whether a topic of this name is among those it reads, or would be."""
        return topic in self.topics or bool(topic and self.pattern and re.fullmatch(self.pattern, topic))


@dataclass(frozen=True, kw_only=True)
class ArchiveSettings(StreamSettings):
    """Topics to a Delta table, partitioned by topic, date and hour; every message exactly once."""

    trigger: float = setting(
        s.seconds, 10.0, about="Time from the start of one batch to the start of the next; short ones make small files."
    )
    max_messages: int = setting(s.count, 2_000_000, about="Most messages of one batch.")
    out: str = setting(
        s.place, "", about="Where the files go (default: beside the data directory, under the pipeline's name).",
        example="./lapwing-data/archive",
        fixed="what was read is in the old place; a new place needs a new checkpoint and starts from the beginning",
    )
    compression: str = setting(
        s.one_of("snappy", "zstd", "gzip", "lz4", "uncompressed"), "snappy", about="How the files are compressed."
    )
    headers: bool = setting(s.flag, True, about="Keep the messages' headers in a column of their own.")
    compact_after: int = setting(
        s.count, 32, about="Small files in one hour's folder after which they are merged into one."
    )
    file_bytes: int = setting(s.count, 256 << 20, about="Size up to which files are merged.")
    history: float = setting(s.seconds, 86_400.0, about=_HISTORY)
    rows_per_task: int = setting(s.count, 500_000, about="Messages that one task writes into one file.")


@dataclass(frozen=True, kw_only=True)
class ParsedSettings(StreamSettings):
    """Settings of every pipeline that looks into bodies."""

    format: str = setting(
        s.one_of("json", "csv", "avro", "protobuf", "text", "binary"), "json", about="What the bodies are."
    )
    schema: str = setting(
        s.text, "infer", example="id bigint, amount double, country string",
        about="Fields of JSON or CSV as SQL types; infer looks at JSON messages once and pins what it finds.",
    )
    definition: str = setting(
        s.file, "", about="File with the schema of Avro (.avsc) or the descriptor set of Protobuf (.desc).",
        example="orders.avsc",
    )
    message: str = setting(s.text, "", about="Name of the Protobuf message.", example="shop.Order")
    archive: str = setting(
        s.place, "", example="./lapwing-data/archive",
        about="Directory of an archive that has older messages than the brokers: they are read first.",
    )
    parse_options: Mapping[str, str] = setting(
        s.mapping, {}, about="Options of Spark's parser for the format.", example="{sep: ';'}"
    )


@dataclass(frozen=True, kw_only=True)
class RejectingSettings(ParsedSettings):
    """Settings of every pipeline that sets aside messages which it cannot work with."""

    rejects: str = setting(
        s.text, "", example="orders.rejected",
        about="Topic for what does not parse, with the reason; none leaves it out (default: first topic + .rejected).",
    )
    drift: str = setting(
        s.one_of("ignore", "reject"), "ignore", about="What to do with messages that have fields the schema lacks."
    )


@dataclass(frozen=True, kw_only=True)
class TransformSettings(RejectingSettings):
    """SQL or Python over a topic, out to another topic exactly once; what does not parse goes to a topic of its own."""

    sql: str = setting(
        s.text, "", about="A query over the view `input`.", example="select id, amount * 1.19 as gross from input"
    )
    to: str = setting(s.topic, "", about="Topic for the result (or the column topic names it).", example="orders.gross")
    dry_run: bool = setting(s.flag, False, about="Only show the schema and a sample of the result.")


@dataclass(frozen=True, kw_only=True)
class TableSettings(RejectingSettings):
    """A topic as a typed table: Delta, plain Parquet or a database; each message once."""

    trigger: float = setting(
        s.seconds, 10.0, about="Time from the start of one batch to the start of the next; short ones make small files."
    )
    columns: Mapping[str, str] = setting(
        s.mapping, {}, example="{id: id, gross: amount * 1.19, country: upper(country)}",
        about="Columns of the table as SQL (default: every field, and _topic, _node, _sequence, _timestamp).",
    )
    store: str = setting(
        s.one_of("delta", "parquet", "jdbc"), "delta", about="What the table is.",
        fixed="what was written is in the old one; a new one needs a new checkpoint",
    )
    out: str = setting(
        s.place, "", about="Directory of a Delta table or of Parquet files (default: beside the data directory).",
        fixed="what was written is in the old place; a new place needs a new checkpoint",
    )
    table: str = setting(
        s.table, "", about="Name of the table in a database.", example="public.orders",
        fixed="what was written is in the old table; a new one needs a new checkpoint",
    )
    url: str = setting(s.text, "", about="JDBC URL of the database.", example="jdbc:postgresql://localhost/shop")
    user: str = setting(s.text, "", about="User of the database.")
    password: str = setting(
        s.password, "", about="Password of the user; it may be empty.", example="${PGPASSWORD}", secret=True
    )
    key: tuple[str, ...] = setting(
        s.texts, (), example="[id]",
        about="Columns that identify a row of a database: a later message replaces the row (default: rows are added).",
    )
    time: str = setting(
        s.text, DEFAULT_TIME,
        about="The time of an event: a field or SQL expression; a message without one goes to the rejects.",
    )
    partition: str = setting(
        s.one_of("hour", "day", "month", "none"), "day", about="How files are partitioned by that time.",
        fixed="files of both kinds in one table could not be read together",
    )
    store_options: Mapping[str, str] = setting(
        s.mapping, {}, about="Further options of Spark's writer for the store.", example="{batchsize: 5000}"
    )
    jars: tuple[str, ...] = setting(
        s.texts, (), about="Jars that the store needs.", example="[/usr/share/java/postgresql.jar]"
    )
    compression: str = setting(
        s.one_of("snappy", "zstd", "gzip", "lz4", "uncompressed"), "snappy", about="How Parquet files are compressed."
    )
    compact_after: int = setting(s.count, 32, about="Small files in one folder after which they are merged into one.")
    file_bytes: int = setting(s.count, 256 << 20, about="Size up to which files are merged.")
    history: float = setting(s.seconds, 86_400.0, about=_HISTORY)
    dry_run: bool = setting(s.flag, False, about="Only show the schema and a sample of the rows.")


@dataclass(frozen=True, kw_only=True)
class ReplaySettings(PipelineSettings):
    """Messages of an archive or of a topic's log, published again; safe to cancel and to repeat."""

    topics: tuple[str, ...] = setting(s.topics, (), about="Topics whose messages to replay.", example="[orders]")
    archive: str = setting(s.place, "", about="Directory of an archive to read from, instead of the brokers' logs.")
    to: str = setting(s.topic, "", about="Topic to publish to.", example="orders.again")
    id: str = setting(
        s.word, "", about="What makes it this replay: one id publishes its messages once (default: from the settings)."
    )
    since: int | None = setting(s.moment, None, about="From this time on.", example="2026-11-15T00:00:00Z")
    until: int | None = setting(s.moment, None, about="Up to this time (excluded).")
    sequences: tuple[int, int] | None = setting(s.sequences, None, about="Only these sequences.", example="100..200")
    where: str = setting(
        s.text, "", about="SQL condition on topic, node, sequence, id, timestamp, body, text, headers.",
        example="text like '%error%'",
    )
    select: str = setting(
        s.text, "", about="SQL expression for the new body (default: body).", example="upper(text)"
    )
    rate: int | None = setting(s.count, None, about="Most messages a second.")
    chunk: int = setting(s.count, 200_000, about="Messages published at once.")
    origin: bool = setting(s.flag, True, about="Name in a header where each message came from.")
    dry_run: bool = setting(s.flag, False, about="Only show what would be published.")


KINDS: Final[dict[str, type[PipelineSettings]]] = {
    "archive": ArchiveSettings,
    "table": TableSettings,
    "transform": TransformSettings,
    "replay": ReplaySettings,
}
