"""The source and the sink of a pipeline's messages: the options of the data source, made from its settings."""

from typing import TYPE_CHECKING, Any

from lapwing.errors import ConfigError
from lapwing.spark.brokers.directory import Directory
from lapwing.spark.brokers.http import BrokerAway, BrokerRefused, NotAuthorized, WrongPort, call, patiently
from lapwing.spark.brokers.inquiry import Inquiry
from lapwing.spark.options import BrokerAccess, OptionError, sink_options, source_options
from lapwing.spark.pipelines.settings.kind_settings import ParsedSettings, PipelineSettings, StreamSettings
from lapwing.spark.pipelines.settings.values import ACCESS_OPTIONS, SINK_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def access_options(settings: PipelineSettings) -> dict[str, str]:
    """Return how the brokers are reached."""
    found = {"retryTimeout": f"{round(settings.retry * 1000)}ms"}
    found |= {key: value for key, value in settings.options.items() if key in ACCESS_OPTIONS}
    if settings.nsqd:
        found["nsqd"] = ",".join(settings.nsqd)
    else:
        found["lookupd"] = ",".join(settings.lookupd)
    return found


def read_options(settings: PipelineSettings) -> dict[str, str]:
    """Return the same for reading, with the options that the user gave."""
    archive = settings.archive if isinstance(settings, ParsedSettings) else ""
    own = {key: value for key, value in settings.options.items() if key not in SINK_OPTIONS}
    return {**own, **access_options(settings), **({"archive": archive} if archive else {})}


def topic_options(settings: StreamSettings) -> dict[str, str]:
    """Return which topics are read."""
    return {"topicPattern": settings.pattern} if settings.pattern else {"topic": ",".join(settings.topics)}


def stream_options(settings: StreamSettings, **more: str) -> dict[str, str]:
    """Return the options of a stream over the topics; raises `ConfigError`."""
    raw = {
        **read_options(settings),
        "channel": settings.channel or settings.name,
        "maxMessagesPerTrigger": str(settings.max_messages),
        "failOnDataLoss": str(settings.fail_on_data_loss).lower(),
        "acceptLoss": str(settings.accept_loss).lower(),
        **more,
    }
    if settings.start.startswith("@"):  # a time
        raw |= {"startingTimestamp": settings.start[1:], "startingOffsetsByTimestampStrategy": "latest"}
    else:
        raw["startingOffsets"] = settings.start
    raw |= topic_options(settings)
    try:
        source_options(raw, streaming=True)
    except OptionError as error:
        raise _refused(settings, error) from error
    return raw


def read_stream(spark: "SparkSession", settings: StreamSettings, **more: str) -> "DataFrame":
    """Return the messages of the topics, as they come; raises `ConfigError`."""
    return spark.readStream.format("lapwing").options(**stream_options(settings, **more)).load()


def sink_access(settings: PipelineSettings, nsqd: tuple[str, ...], **more: str) -> dict[str, str]:
    """Return the options of a write to these brokers; raises `ConfigError`."""
    raw = {**access_options(settings), **more, "nsqd": ",".join(nsqd)}
    raw.pop("lookupd", None)
    try:
        sink_options({"topic": "any", **raw}, streaming=True)
    except OptionError as error:
        raise _refused(settings, error) from error
    return raw


def access(settings: PipelineSettings) -> BrokerAccess:
    """Return the brokers, for calls of our own."""
    try:
        return sink_options({"topic": "any", "mode": "atleastonce", **access_options(settings)}, streaming=True).access
    except OptionError as error:
        raise _refused(settings, error) from error


def brokers(settings: PipelineSettings) -> tuple[str, ...]:
    """Return the HTTP addresses of all brokers, those of nsqlookupd in order.

    One that does not answer is no error as long as another does: it may come back. While none does, they are asked
    again for the time of the setting `retry`; then raises `ConfigError`.
    """
    found = access(settings)
    try:
        inquiry = Inquiry()
        return patiently(settings.name, lambda: _answering(settings, found, inquiry), found)
    except BrokerAway as error:
        raise ConfigError(str(error.__cause__)) from error  # what was tried last, and not for how long


def _answering(settings: PipelineSettings, found: BrokerAccess, inquiry: Inquiry) -> tuple[str, ...]:
    """Return the brokers; raises `BrokerAway` while none of them answers, `ConfigError` for what no time mends."""
    try:
        addresses = list(settings.nsqd) or sorted(Directory(found).find())
        if not addresses:
            at = ", ".join(settings.lookupd)
            raise BrokerAway(f"nsqlookupd at {at}", "knows of no nsqd; start one, or use --nsqd")
        answers = inquiry.ask_all(addresses, "offsets", lambda address: _ask(address, settings, found))
    except BrokerAway as error:
        if settings.nsqd or str(error).startswith("nsqlookupd at"):
            raise
        raise BrokerAway(str(error), "is nsqlookupd running? --lookupd names its HTTP address") from error
    except (WrongPort, NotAuthorized) as error:
        raise ConfigError(str(error)) from error
    silent = [str(answer) for _, answer in answers if isinstance(answer, Exception)]
    if len(silent) == len(addresses):
        raise BrokerAway("no nsqd answers", f"{'; '.join(silent)}; is it running? --nsqd names its HTTP address")
    return tuple(addresses)


def _ask(address: str, settings: PipelineSettings, found: BrokerAccess) -> Any:
    topics: tuple[str, ...] = getattr(settings, "topics", ())
    question = {"topic": topics[0] if topics else "_lapwing_none", "times": "false"}
    if isinstance(settings, StreamSettings) and found.secret:  # a permission may be for these alone
        question["channel"] = settings.channel or settings.name
    try:
        return call(address, found, "GET", "/log/offsets", question)
    except BrokerRefused as error:
        if error.status == 404:
            raise ConfigError(f"{address} is a plain NSQ server: it has no log to read from") from error
        raise


def _refused(settings: PipelineSettings, error: OptionError) -> ConfigError:
    """Return a complaint about an option. What the other settings make of theirs is right, so it was given by hand."""
    return ConfigError(f"{settings.name}: {'options: ' if settings.options else ''}{error}")
