"""Bodies as columns: what SQL sees of a message, and what cannot be parsed with the reason."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StringType, StructField, StructType, TimestampType

from lapwing.errors import ConfigError
from lapwing.spark.brokers.http import BrokerAway, BrokerRefused, call
from lapwing.spark.failures import analysis, compiling
from lapwing.spark.options import source_options
from lapwing.spark.pipelines.kinds.messages import access, stream_options
from lapwing.spark.pipelines.run.context import RunContext
from lapwing.spark.pipelines.settings.kind_settings import ParsedSettings, RejectingSettings
from lapwing.spark.source.offsets import each_log
from lapwing.spark.source.survey import survey

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

logger = logging.getLogger(__name__)

# what every message has beside its body, under names that no field of a JSON object is likely to have
ABOUT: Final = {
    "_topic": "topic",
    "_node": "node",
    "_sequence": "sequence",
    "_id": "id",
    "_timestamp": "timestamp",
    "_headers": "headers",
}
_CORRUPT: Final = "_corrupt_record"
_VALUE: Final = "_value"
_MARK: Final = "_end"
_SAMPLE: Final = 1000  # messages that are looked at, from each end of each log


_BODY: Final = "_body"
_REASON: Final = "_reason"
# what of a message that could not be parsed is kept for its own topic; null for all others
REJECTED: Final = "_rejected"
TIME: Final = "_event_time"  # the time of an event, beside the fields
OURS: Final = frozenset({*ABOUT, "_size", _BODY, _REASON, REJECTED, TIME})


@dataclass(frozen=True)
class ParsedInput:
    """The messages that can be worked with; and these together with those that cannot, which have `_rejected`."""

    good: "DataFrame"
    everything: "DataFrame"


def parse(frame: "DataFrame", settings: RejectingSettings, context: RunContext) -> "DataFrame":
    """Return the messages as columns, by the format of the settings; `frame` has those of the source, headers too.

    What cannot be parsed is among them, with a reason; `divided` separates them.
    """
    about = [F.col(column).alias(name) for name, column in ABOUT.items()]
    about += [F.octet_length("body").alias("_size"), F.col("body").alias(_BODY)]
    if settings.format == "binary":
        return frame.select("body", *about, F.lit(None).cast("string").alias(_REASON))
    text = F.col("body").cast("string")
    if settings.format == "text":
        reason = F.when(~F.is_valid_utf8(text), F.lit("not UTF-8"))
        return frame.select(text.alias("body"), *about, reason.alias(_REASON))
    if settings.format == "csv":
        return _parse_csv(frame, settings, about)
    if settings.format in ("avro", "protobuf"):
        return _parse_defined(frame, settings, about)
    schema = _unambiguous(schema_of(settings, context), settings)
    marked = _with_parsed(frame, parsed(text, schema))
    value = F.col("_parsed").getField(_VALUE)
    fields = [value.getField(field.name).alias(field.name) for field in schema.fields]
    reason = _reason(schema, reject_unknown=settings.drift == "reject")
    return marked.select(*fields, *about, reason.alias(_REASON))


def _with_parsed(frame: "DataFrame", parsed: "Column") -> "DataFrame":
    """Return the messages with a column `_parsed`.

    A column that is not deterministic keeps the optimizer from pushing filters down to where the parsing is, which
    would parse every body once for each of them.
    """
    return frame.withColumns({"_parsed": parsed, "_barrier": F.spark_partition_id()})


def _unambiguous(schema: StructType, settings: ParsedSettings) -> StructType:
    if taken := sorted({field.name for field in schema.fields} & OURS):
        raise ConfigError(f"{settings.name}: schema: the name {taken[0]} is taken; choose another for the field")
    known: dict[str, str] = {}
    for field in schema.fields:
        if (other := known.setdefault(field.name.lower(), field.name)) != field.name:
            raise ConfigError(
                f"{settings.name}: schema: {other} and {field.name} differ only in case, and Spark's columns cannot; "
                "set schema: to one of them"
            )
    return schema


def _parse_csv(frame: "DataFrame", settings: ParsedSettings, about: "list[Column]") -> "DataFrame":
    if settings.schema == "infer":
        raise ConfigError(f"{settings.name}: schema: CSV has no names; set schema: such as 'id bigint, name string'")
    schema = _unambiguous(_declared(settings), settings)
    columns = [*schema.fields, StructField(_CORRUPT, StringType())]
    ddl = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in columns)
    text = F.col("body").cast("string")
    options = {**settings.parse_options, "columnNameOfCorruptRecord": _CORRUPT}
    with compiling(f"{settings.name}: parse_options"):
        marked = _with_parsed(frame, F.from_csv(text, ddl, options))
    value = F.col("_parsed")
    wrong = value.isNull() | value.getField(_CORRUPT).isNotNull()
    reason = F.when(F.col("_barrier") < 0, F.lit("")).when(~F.is_valid_utf8(text), F.lit("not UTF-8"))
    fields = [value.getField(field.name).alias(field.name) for field in schema.fields]
    return marked.select(*fields, *about, reason.when(wrong, F.lit("not CSV of this schema")).alias(_REASON))


def _parse_defined(frame: "DataFrame", settings: ParsedSettings, about: "list[Column]") -> "DataFrame":
    """Return the same for formats whose schema is in a file, by Spark's own packages."""
    import pyspark

    if not settings.definition:
        raise ConfigError(f"{settings.name}: definition is missing: the file with the schema of the {settings.format}")
    options = {"mode": "PERMISSIVE", **settings.parse_options}
    body = F.col("body")
    try:
        if settings.format == "avro":
            from pyspark.sql.avro.functions import from_avro

            definition = Path(settings.definition).read_text(encoding="utf-8")
            value = from_avro(body, definition, with_mark(definition, options, settings.name))
        else:
            from pyspark.sql.protobuf.functions import from_protobuf

            if not settings.message:
                raise ConfigError(f"{settings.name}: message is missing: the name of the Protobuf message")
            value = from_protobuf(body, settings.message, settings.definition, options)
        marked = _with_parsed(frame, value)
    except TypeError as error:  # the class is not there
        package = f"org.apache.spark:spark-{settings.format}_2.13:{pyspark.__version__}"
        raise ConfigError(
            f"{settings.name}: format: {settings.format} needs a package: add --conf spark.jars.packages={package}"
        ) from error
    except PySparkException as error:
        raise ConfigError(f"{settings.name}: definition: {analysis(error)}") from error
    kind = marked.schema["_parsed"].dataType
    if not isinstance(kind, StructType):
        raise ConfigError(f"{settings.name}: definition: a record with fields is needed, not {kind.simpleString()}")
    schema = _unambiguous(StructType([field for field in kind.fields if field.name != _MARK]), settings)
    value = F.col("_parsed")
    fields = [value.getField(field.name).alias(field.name) for field in schema.fields]
    failed = value.getField(_MARK).isNull() if settings.format == "avro" else value.isNull()
    wrong = F.lit(f"not {settings.format.capitalize()} of this definition")
    reason = F.when(F.col("_barrier") < 0, F.lit("")).when(failed, wrong)
    return marked.select(*fields, *about, reason.alias(_REASON))


def with_mark(definition: str, options: Mapping[str, str], name: str) -> dict[str, str]:
    """Return options by which Spark reads Avro into the fields of `definition` and a mark that each message gets.

    For a message that cannot be read Spark returns a row of nulls, which a message could be too; such a row has no
    mark. The mark is a field of the reader's schema with a default. Raises `ConfigError`, which names the pipeline.
    """
    given = {key.lower(): value for key, value in options.items()}
    text = given.get("avroschema", definition)
    try:
        record = json.loads(text)
        fields = [*record["fields"], {"name": _MARK, "type": "int", "default": 1}]
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{name}: definition: the schema of a record is needed, as JSON with fields") from error
    kept = {key: value for key, value in options.items() if key.lower() != "avroschema"}
    return {**kept, "avroSchema": json.dumps({**record, "fields": fields})}


def rejecting(rows: "DataFrame", reason: "Column") -> "DataFrame":
    """Return the rows, of which those that were good so far are not if there is a reason."""
    return rows.withColumn(_REASON, F.coalesce(_REASON, reason))


def divided(rows: "DataFrame") -> ParsedInput:
    """Return the rows of `parse`, separated."""
    kept = [F.col(f"_{name}").alias(name) for name in ("topic", "node", "sequence", "id", "body", "reason")]
    aside = F.when(F.col(_REASON).isNotNull(), F.struct(*kept)).alias(REJECTED)
    shown = [F.col(f"`{column}`") for column in rows.columns if column not in (_BODY, _REASON)]
    everything = rows.select(*shown, aside)
    return ParsedInput(everything.where(F.col(REJECTED).isNull()).drop(REJECTED), everything)


def with_time(rows: "DataFrame", name: str, time: str) -> "DataFrame":
    """Return the rows with a column `_event_time`, the expression `time`; rows without one are rejects.

    Raises `ConfigError`, which names the pipeline, if it is no time.
    """
    with compiling(f"{name}: time"):
        divided(rows).good.select(F.expr(time))  # only what SQL may see
        timed = rows.withColumn(TIME, F.expr(time))
    kind = timed.schema[TIME].dataType
    if isinstance(kind, StringType):
        timed = timed.withColumn(TIME, F.try_to_timestamp(TIME))
    elif not isinstance(kind, TimestampType):
        raise ConfigError(
            f"{name}: time: {time} is {kind.simpleString()}; "
            f"use timestamp_millis({time}) or timestamp_seconds({time})"
        )
    return rejecting(timed, F.when(F.col(TIME).isNull(), F.lit(f"no time: {time}")))


def parsed(text: "Column", schema: StructType) -> "Column":
    """Return a struct: the parsed object, a mark that is missing when more followed it, the text if it is corrupt.

    Spark stops reading at the end of the first value and takes what follows for nothing; put inside another object, a
    body with anything behind its own object breaks it, or the mark does not appear.
    """
    whole = StructType([
        StructField(_VALUE, schema), StructField(_MARK, IntegerType()), StructField(_CORRUPT, StringType())
    ])  # fmt: skip
    strict = {"columnNameOfCorruptRecord": _CORRUPT, "allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
    return F.from_json(_wrapped(text), whole, strict)


def _wrapped(text: "Column") -> "Column":
    return F.concat(F.lit(f'{{"{_VALUE}":'), text, F.lit(f',"{_MARK}":1}}'))


def _reason(schema: StructType, *, reject_unknown: bool) -> "Column":
    """Return why a body was not parsed; null for one that was."""
    text = F.col("body").cast("string")
    value, mark = F.col("_parsed").getField(_VALUE), F.col("_parsed").getField(_MARK)
    whole = F.try_parse_json(_wrapped(text))
    misfits = [
        F.when(
            F.get_json_object(text, f"$['{field.name}']").isNotNull() & value.getField(field.name).isNull(),
            F.lit(f"{field.name} is no {field.dataType.simpleString()}"),
        )
        for field in schema.fields
    ]
    inside = F.schema_of_variant(F.try_parse_json(text))
    why = (
        F.when(whole.isNull() | F.try_variant_get(whole, f"$.{_MARK}", "int").isNull(), F.lit("not JSON"))
        .when(~inside.startswith("OBJECT"), F.lit("JSON, but not an object"))
        .otherwise(F.coalesce(F.nullif(F.concat_ws("; ", *misfits), F.lit("")), F.lit("does not fit the schema")))
    )
    wrong = value.isNull() | mark.isNull() | F.col("_parsed").getField(_CORRUPT).isNotNull()
    reason = F.when(F.col("_barrier") < 0, F.lit("")).when(~F.is_valid_utf8(text), F.lit("not UTF-8")).when(wrong, why)
    if reject_unknown:
        known = F.array(*(F.lit(field.name) for field in schema.fields))
        unknown = F.array_except(F.json_object_keys(text), known)
        reason = reason.when(F.size(unknown) > 0, F.concat(F.lit("unknown field "), F.array_join(unknown, ", ")))
    return reason


def schema_of(settings: ParsedSettings, context: RunContext) -> StructType:
    """Return the schema that was given, else the one of an earlier run, else that of the messages now."""
    if settings.schema != "infer":
        return _declared(settings)
    if pinned := context.checkpoint.pins().get("schema"):
        return StructType.fromJson(json.loads(pinned))
    inferred = _infer(settings, context)
    if context.dry_run:
        return inferred
    context.checkpoint.pin(schema=inferred.json(), schema_text=said(inferred))
    logger.info("%s: schema: %s (pinned; the setting schema chooses another)", settings.name, said(inferred))
    return inferred


def _declared(settings: ParsedSettings) -> StructType:
    with compiling(f"{settings.name}: schema"):
        found = StructType.fromDDL(settings.schema)
    if not isinstance(found, StructType):
        raise ConfigError(f"{settings.name}: schema: name and type of each field expected, not {settings.schema}")
    return found


def said(schema: StructType) -> str:
    """Return a schema as people write it."""
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)


def _infer(settings: ParsedSettings, context: RunContext) -> StructType:
    bodies = _sample(settings)
    if not bodies:
        raise ConfigError(
            f"{settings.name}: no messages to infer a schema from; publish some, or set schema: such as "
            "'id bigint, name string'"
        )
    found = context.spark.read.json(context.spark.sparkContext.parallelize(bodies, 1)).schema
    fields = [field for field in found.fields if field.name != _CORRUPT]
    if not fields:
        raise ConfigError(
            f"{settings.name}: none of {len(bodies)} messages is a JSON object; set format: text or binary"
        )
    return StructType(fields)


def _sample(settings: ParsedSettings) -> list[str]:
    there = survey(source_options(stream_options(settings), streaming=True))
    brokers = access(settings)
    bodies: list[str] = []
    for topic, _, held in each_log(there.holdings):
        for start in {held.first, max(held.first, held.next - _SAMPLE)}:
            question: dict[str, Any] = {
                "topic": topic, "from": start, "to": held.next, "format": "json", "limit": _SAMPLE
            }  # fmt: skip
            try:
                answer = call(held.address, brokers, "GET", "/log/read", question)
            except (BrokerAway, BrokerRefused) as error:
                raise ConfigError(f"{settings.name}: no messages to infer a schema from: {error}") from error
            bodies += [message["body"] for message in answer["messages"] if message["body"] is not None]
    return bodies
