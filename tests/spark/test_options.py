"""Options are read once, checked whole, and refused by name."""

import pytest

from lapwing.spark.options import OptionError, sink_options, source_options
from lapwing.spark.source.offsets import LogPosition

NSQD = {"nsqd": "h:4151"}


def stream(**raw):
    return source_options({**NSQD, "topic": "orders", **raw}, streaming=True)


def batch(**raw):
    return source_options({**NSQD, "topic": "orders", **raw}, streaming=False)


def test_streams_start_at_the_latest_and_batches_at_the_earliest():
    assert stream().starting == "latest"
    assert batch().starting == "earliest"


def test_options_have_the_names_that_kafka_users_know():
    options = source_options(
        {"subscribe": "a, b,a", "maxOffsetsPerTrigger": "5", "minoffsetspertrigger": "2", "lookupd": "h:4161,i:4161"},
        streaming=True,
    )

    assert (options.topics, options.max_messages, options.min_messages) == (("a", "b"), 5, 2)
    assert options.access.lookupd == ("h:4161", "i:4161")


def test_http_addresses_have_the_name_that_the_client_gives_them_too():
    options = source_options({"nsqd_http": "h:4151, i:4151", "topic": "orders"}, streaming=False)

    assert options.access.nsqd == ("h:4151", "i:4151")
    assert sink_options({"lookupd_http": "h:4161", "topic": "orders"}, streaming=True).access.lookupd == ("h:4161",)
    with pytest.raises(OptionError, match="options nsqd and nsqd_http mean the same thing"):
        source_options({"nsqd_http": "h:4151", "nsqd": "h:4151", "topic": "orders"}, streaming=False)


def test_load_with_a_path_names_the_topic():
    assert source_options({**NSQD, "path": "orders"}, streaming=False).topics == ("orders",)


def test_offsets_times_and_durations_are_understood():
    offsets = '{"orders": {"7": 5, "9": {"log_id": "x", "sequence": 3}}}'
    assert batch(startingOffsets=offsets).starting == {"orders": {7: 5, 9: LogPosition("x", 3)}}
    assert batch(startingTimestamp="1700000000000").starting_timestamp == 1_700_000_000_000_000_000
    assert stream(minMessagesPerTrigger="5", maxTriggerDelay="15m").max_delay == 900.0
    assert stream(retryTimeout="500ms").access.retry_seconds == 0.5


def test_a_secret_is_not_shown():
    assert "hush" not in repr(stream(mode="subscribe", channel="c", spoolDirectory="/x", authSecret="hush"))


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"maxMessagePerTrigger": "5"}, "unknown option maxMessagePerTrigger; did you mean maxMessagesPerTrigger"),
        ({"zzz": "5"}, "unknown option zzz; there are: nsqd"),
        ({"subscribe": "x"}, "options topic and subscribe mean the same thing"),
        ({"topicPattern": "x.*"}, "exactly one of topic"),
        ({"nsqd_http": "h:1"}, "options nsqd and nsqd_http mean the same thing"),
        ({"lookupd": "h:4161"}, "exactly one of nsqd and lookupd"),
        ({"nsqd": "h"}, "option nsqd is host:port"),
        ({"nsqd": "http://h:1"}, "option nsqd is host:port"),
        ({"topic": "or ders"}, "'or ders' is no name for a topic"),
        ({"channel": "a/b"}, "no name for a channel"),
        ({"startingOffsets": "sometime"}, "option startingOffsets is earliest, latest, channel or JSON"),
        ({"startingOffsets": '{"orders": 5}'}, "option startingOffsets: topic orders"),
        ({"startingOffsets": "channel"}, "needs the option channel"),
        ({"startingOffsets": "earliest", "startingTimestamp": "1"}, "contradicts startingTimestamp"),
        ({"startingTimestamp": "yesterday"}, "ms since 1970"),
        ({"startingTimestamp": "1700000000000000000"}, "option startingTimestamp is a time in ms since 1970"),
        ({"endingOffsets": "latest"}, "is for batch reads"),
        ({"maxMessagesPerTrigger": "0"}, "option maxMessagesPerTrigger is a number above 0"),
        ({"maxMessagesPerTrigger": "5", "maxBytesPerTrigger": "5"}, "exclude each other"),
        ({"minMessagesPerTrigger": "6", "maxMessagesPerTrigger": "5"}, "is above"),
        ({"failOnDataLoss": "maybe"}, "option failOnDataLoss is true or false"),
        ({"minMessagesPerTrigger": "6", "maxTriggerDelay": "soon"}, "option maxTriggerDelay: invalid duration"),
        ({"retryTimeout": "30"}, 'option retryTimeout: invalid duration "30": the unit is missing, write 30s'),
        ({"maxTriggerDelay": "15m"}, "option maxTriggerDelay needs minMessagesPerTrigger"),
        ({"startingOffsetsByTimestampStrategy": "latest"}, "Strategy needs startingTimestamp"),
        ({"mode": "magic"}, "option mode is log or subscribe"),
        ({"mode": "subscribe"}, "needs the option channel"),
        ({"mode": "subscribe", "channel": "c"}, "needs the option spoolDirectory"),
        ({"mode": "subscribe", "failOnDataLoss": "true"}, "option failOnDataLoss needs the log"),
        ({"mode": "subscribe", "localFiles": "true"}, "option localFiles needs the log"),
        ({"spoolDirectory": "/x"}, "is for mode=subscribe"),
        ({"authSecret": "a\nb"}, "option authSecret: the secret cannot be sent"),
        ({"localFiles": "perhaps"}, "option localFiles is true or false"),
        ({"tlsRootCaFile": "x"}, "needs tls=true"),
        ({"tls": "true", "tlsKeyFile": "x"}, "needs tlsCertFile"),
        ({"tls": "true", "tlsRootCaFile": "/nowhere/ca.pem"}, "option tlsRootCaFile: there is no file /nowhere/ca.pem"),
        ({"tls": "true", "nsqd": "", "lookupd": "h:4161"}, "options lookupd and tls exclude each other"),
    ],
)
def test_what_a_stream_cannot_have_is_refused_by_name(raw, said):
    with pytest.raises(OptionError, match=said):
        stream(**raw)


@pytest.mark.parametrize("name", ["channel", "maxMessagesPerTrigger", "pollTimeout"])
def test_what_is_for_streams_is_refused_in_a_batch(name):
    with pytest.raises(OptionError, match=f"option {name} is for streams"):
        batch(**{name: "1"})


def test_a_range_that_ends_before_it_begins_is_refused():
    with pytest.raises(OptionError, match="endingTimestamp lies before startingTimestamp"):
        batch(startingTimestamp="2", endingTimestamp="1")
    with pytest.raises(OptionError, match="endingOffsets lies before startingOffsets: topic orders, node 1, 3 and 5"):
        batch(startingOffsets='{"orders": {"1": 5}}', endingOffsets='{"orders": {"1": 3}}')
    assert batch(startingOffsets='{"orders": {"1": 5}}', endingOffsets='{"orders": {"1": -1}}').ending


def test_latest_is_no_start_for_a_batch():
    with pytest.raises(OptionError, match="option startingOffsets is earliest or JSON"):
        batch(startingOffsets="latest")


def test_a_topic_pattern_must_be_one():
    with pytest.raises(OptionError, match="option topicPattern"):
        source_options({**NSQD, "topicPattern": "("}, streaming=True)


def test_sparks_own_options_of_a_sink_are_none_of_ours():
    assert sink_options({**NSQD, "topic": "t", "checkpointLocation": "/x"}, streaming=True).topic == "t"


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"topic": "a,b"}, "names one topic"),
        ({"sinkId": "a b", "batchId": "1"}, "option sinkId"),
        ({"sinkId": "a", "batchId": "-1"}, "option batchId is a number"),
        ({"sinkId": "a", "batchId": "9999999999999999999"}, "option batchId is a number from 0 to 2"),
        ({"sinkId": "a"}, "sinkId and batchId belong together"),
        ({"sinkId": "a", "batchId": "1", "mode": "atleastonce"}, "option sinkId needs mode=exactlyonce"),
        ({"mode": "twice"}, "option mode is exactlyonce or atleastonce"),
        ({"startingOffsets": "latest"}, "unknown option startingOffsets"),
        ({"authSecret": "a\nb"}, "option authSecret: the secret cannot be sent"),
    ],
)
def test_what_a_sink_cannot_have_is_refused_by_name(raw, said):
    with pytest.raises(OptionError, match=said):
        sink_options({**NSQD, **raw}, streaming=False)


def test_a_stream_is_its_own_sink():
    with pytest.raises(OptionError, match="option sinkId is for batch writes"):
        sink_options({**NSQD, "sinkId": "a", "batchId": "1"}, streaming=True)


@pytest.mark.parametrize("mode", ["ExactlyOnce", "AtLeastOnce"])
def test_a_sink_takes_nsqlookupd_in_both_modes(mode):
    assert sink_options({"lookupd": "h:4161", "mode": mode}, streaming=True).access.lookupd == ("h:4161",)
