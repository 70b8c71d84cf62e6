"""The options of source and sink: every refusal names the option and says what to do instead."""

from __future__ import annotations

import re

import pytest

from headrace._options import COMMON
from headrace.errors import ConfigError
from headrace.spark.options import (
    COLUMNS,
    EARLIEST,
    LATEST,
    SINK,
    SOURCE,
    Bound,
    SourceOptions,
    Topics,
    sink_options,
    source_options,
)
from tests.kafka.java import ROOT

BASE = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}


def source(streaming: bool | None = False, **options: str) -> SourceOptions:
    return source_options({**BASE, **options}, streaming=streaming)


REFUSED = [
    # what is given, over BASE; whether streaming; what the message says
    ({"kafka.bootstrap.servers": ""}, False, r"kafka\.bootstrap\.servers must be set"),
    ({"assign": '{"t":[0]}'}, False, "exactly one of assign, subscribe and subscribePattern .* assign and subscribe"),
    ({"subscribe": " , "}, False, "subscribe names no topic"),
    ({"path": "t"}, False, "has no path: name topics with the option subscribe"),
    ({"startingOfsets": "earliest"}, False, "unknown option startingOfsets .*did you mean startingOffsets"),
    ({"topic": "t"}, False, "unknown option topic of the headrace source"),
    ({"kafka.auto.offset.reset": "earliest"}, False, "auto.offset.reset cannot be set: use startingOffsets"),
    ({"kafka.Key.Deserializer": "x"}, False, "cannot be set: use key.format"),
    ({"kafka.value.deserializer": "x"}, False, "cannot be set: use value.format"),
    ({"kafka.key.serializer": "x"}, False, "cannot be set: use key.format"),
    ({"kafka.value.serializer": "x"}, False, "cannot be set: use value.format"),
    ({"kafka.enable.auto.commit": "true"}, True, "cannot be set: offsets live in the checkpoint"),
    ({"kafka.interceptor.classes": "x"}, True, "cannot be set: interceptors are Java classes"),
    ({"kafka.isolation.level": "read_committed"}, True, "kafka.isolation.level cannot be read_committed yet"),
    ({"startingOffsets": "latest"}, False, "startingOffsets 'latest' is for streaming"),
    ({"startingOffsets": '{"t":{"0":-1}}'}, False, r"startingOffsets of t-0 cannot be -1 \(latest\) in a batch"),
    ({"endingOffsets": "earliest"}, False, "endingOffsets cannot be 'earliest'"),
    ({"endingOffsets": '{"t":{"0":-2}}'}, False, r"endingOffsets of t-0 cannot be -2 \(earliest\) in a batch"),
    ({"endingOffsets": "latest"}, True, "endingOffsets is for batch queries: a streaming query has no end"),
    ({"endingOffsetsByTimestamp": "{}"}, True, "endingOffsetsByTimestamp is for batch queries"),
    ({"endingTimestamp": "1"}, True, "endingTimestamp is for batch queries"),
    ({"startingOffsets": "first"}, True, "startingOffsets is a JSON object such as .*, not 'first'"),
    ({"startingOffsets": "[1]"}, True, "startingOffsets is a JSON object"),
    ({"startingOffsets": '{"t":[0]}'}, True, "startingOffsets is a JSON object"),
    ({"startingOffsets": '{"t":{"x":0}}'}, True, "startingOffsets is a JSON object"),
    ({"startingOffsets": '{"t":{"0":-3}}'}, True, "startingOffsets is a JSON object"),
    ({"startingOffsets": '{"t":{"0":true}}'}, True, "startingOffsets is a JSON object"),
    ({"startingOffsets": '{"t":{"0":1.5}}'}, True, "startingOffsets is a JSON object"),
    ({"startingOffsets": '{"t":{"0":1,"00":2}}'}, True, "startingOffsets names t-0 twice"),
    ({"startingOffsets": '{"t":{"0":1,"\u0660":1}}'}, True, "startingOffsets names t-0 twice"),
    ({"startingOffsets": '{"t":{"0":1,"0":2}}'}, True, "startingOffsets names '0' twice"),
    ({"startingOffsets": '{"t":{"0":1},"t":{"1":2}}'}, True, "startingOffsets names 't' twice"),
    ({"endingOffsets": '{"t":{"1":1,"01":1}}'}, False, "endingOffsets names t-1 twice"),
    ({"startingOffsetsByTimestamp": '{"t":{"2":1,"002":2}}'}, True, "startingOffsetsByTimestamp names t-2 twice"),
    ({"endingOffsetsByTimestamp": '{"t":{"0":1,"0":2}}'}, False, "endingOffsetsByTimestamp names '0' twice"),
    ({"startingOffsets": "[" * 100_000}, True, "startingOffsets is a JSON object"),
    ({"startingOffsetsByTimestamp": '{"t":{"0":-1}}'}, True, "startingOffsetsByTimestamp is a JSON object"),
    ({"startingTimestamp": "yesterday"}, True, "startingTimestamp is milliseconds since the epoch, not 'yesterday'"),
    ({"endingTimestamp": "-5"}, False, "endingTimestamp is milliseconds since the epoch, not '-5'"),
    (
        {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"1":5}}'},
        False,
        "startingOffsets and endingOffsets must name the same partitions",
    ),
    (
        {"startingOffsets": '{"t":{"0":6}}', "endingOffsets": '{"t":{"0":5}}'},
        False,
        r"startingOffsets of t-0 \(6\) is greater than its endingOffsets \(5\)",
    ),
    ({"startingOffsetsByTimestampStrategy": "x"}, True, "startingOffsetsByTimestampStrategy is 'error' or 'latest'"),
    ({"failOnDataLoss": "maybe"}, True, "failOnDataLoss is true or false, not 'maybe'"),
    ({"includeHeaders": "1"}, True, "includeHeaders is true or false, not '1'"),
    ({"maxOffsetsPerTrigger": "0"}, True, "maxOffsetsPerTrigger is a whole number above 0, not '0'"),
    ({"minOffsetsPerTrigger": "-1"}, True, "minOffsetsPerTrigger is a whole number above 0"),
    (
        {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
        True,
        r"minOffsetsPerTrigger \(9\) is greater than maxOffsetsPerTrigger \(8\)",
    ),
    ({"maxTriggerDelay": "soon"}, True, "maxTriggerDelay is a duration such as 500ms, 30s, 15m or 2h, not 'soon'"),
    ({"minPartitions": "many"}, False, "minPartitions is a whole number above 0, not 'many'"),
    ({"maxRecordsPerPartition": "0"}, False, "maxRecordsPerPartition is a whole number above 0"),
    ({"fetchOffset.numRetries": "0"}, False, r"fetchOffset\.numRetries is a whole number above 0"),
    ({"kafkaConsumer.pollTimeoutMs": "x"}, False, r"kafkaConsumer\.pollTimeoutMs is a whole number above 0"),
    ({"columns": "value,headers"}, False, "columns takes some of key, value, .*, not 'value,headers'"),
    ({"columns": ""}, False, "columns takes some of key, value"),
]


AVRO = {"value.format": "avro", "value.schema": '"int"', "value.on.error": "null", "deadLetterTopic": "dead"}
NO_LETTERS = [
    # what is given, over BASE and AVRO; what the message says
    ({"deadLetterTopic": " "}, "deadLetterTopic is empty"),
    ({"value.on.error": "raise"}, r"deadLetterTopic and value\.on\.error=raise \(the default\) exclude each other"),
    ({"value.on.error": None}, r"deadLetterTopic and value\.on\.error=raise"),
    ({"key.format": "int"}, r"deadLetterTopic and key\.on\.error=raise"),
    (dict.fromkeys(AVRO, None) | {"deadLetterTopic": "dead"}, "deadLetterTopic has no effect without value.format"),
    ({"deadLetterTopic": "t"}, "deadLetterTopic is t, which subscribe reads"),
    ({"subscribe": "a, dead ,b"}, "deadLetterTopic is dead, which subscribe reads"),
    ({"subscribe": None, "assign": '{"dead":[3]}'}, "deadLetterTopic is dead, which assign reads"),
    ({"subscribe": None, "subscribePattern": "d.*"}, "deadLetterTopic is dead, which subscribePattern reads"),
]


@pytest.mark.parametrize("streaming", [True, False, None])
@pytest.mark.parametrize(("options", "message"), NO_LETTERS)
def test_source_refuses_dead_letters(options, streaming, message):
    given = {name: value for name, value in {**BASE, **AVRO, **options}.items() if value is not None}
    with pytest.raises(ConfigError, match=message):
        source_options(given, streaming=streaming)


def test_dead_letters_go_to_a_topic_that_is_not_read():
    for more in ({"subscribePattern": "dea"}, {"assign": '{"t":[0]}'}, {"subscribe": "t"}):
        given = {"kafka.bootstrap.servers": "h:1", **AVRO, "DEADLETTERTOPIC": " dead ", **more}
        del given["deadLetterTopic"]
        assert source_options(given, streaming=True).dead_letter_topic == "dead"
    assert source().dead_letter_topic is None


def test_a_reader_of_rows_with_dead_letters_reads_their_headers():
    options = source(**AVRO, **{"kafka.ssl.ca.location": "/ca.pem", "kafka.max.partition.fetch.bytes": "1"})
    assert dict(options.reader)["include.headers"] == "true"
    assert "headers" not in options.columns
    assert dict(options.letters)["ssl.ca.location"] == "/ca.pem"
    assert "max.partition.fetch.bytes" not in dict(options.letters)
    assert "include.headers" not in dict(options.letters)
    short = source(**AVRO, **{"kafka.default.api.timeout.ms": "7"})
    assert dict(short.letters)["max.block.ms"] == "7"


@pytest.mark.parametrize(("options", "streaming", "message"), REFUSED)
def test_source_refuses(options, streaming, message):
    with pytest.raises(ConfigError, match=message):
        source_options({**BASE, **options}, streaming=streaming)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "exactly one of assign, subscribe and subscribePattern must be set, found none of them"),
        ({"assign": "t"}, "assign is a JSON object such as"),
        ({"assign": "{}"}, "assign is a JSON object such as"),
        ({"assign": '{"t":0}'}, "assign is a JSON object such as"),
        ({"assign": '{"t":[-1]}'}, "assign is a JSON object such as"),
        ({"assign": '{"t":["0"]}'}, "assign is a JSON object such as"),
        ({"assign": '{"t":[true]}'}, "assign is a JSON object such as"),
        ({"assign": '{"t":[0],"t":[1]}'}, "assign names 't' twice"),
        ({"subscribePattern": "a("}, r"subscribePattern 'a\(' is no regular expression"),
    ],
)
def test_source_refuses_topics(options, message):
    with pytest.raises(ConfigError, match=message):
        source_options({"kafka.bootstrap.servers": "h:1", **options}, streaming=False)


def test_batch_and_streaming_begin_where_sparks_own_connector_does():
    assert source(streaming=False).start == Bound("startingOffsets", everywhere=EARLIEST)
    assert source(streaming=True).start == Bound("startingOffsets", everywhere=LATEST)
    assert source().end == Bound("endingOffsets", everywhere=LATEST)


def test_what_batch_and_streaming_do_not_share_waits_until_spark_says_which_it_is():
    options = {**BASE, "startingOffsets": "latest", "endingOffsets": "earliest"}
    assert source_options(options, streaming=None).columns == COLUMNS
    with pytest.raises(ConfigError, match="unknown option nope"):
        source_options({**BASE, "nope": "1"}, streaming=None)


def test_names_and_words_are_taken_in_any_case():
    given = {"KAFKA.bootstrap.SERVERS": "h:1", "SubScribe": " b, a,,b ", "STARTINGOFFSETS": " Latest "}
    options = source_options({**given, "INCLUDEHEADERS": "TRUE"}, streaming=True)
    assert options.topics == Topics("subscribe", names=("b", "a"))
    assert options.start.everywhere == LATEST
    assert options.columns == (*COLUMNS, "headers")


def test_a_timestamp_for_all_beats_timestamps_by_partition_which_beat_offsets():
    options = {
        "startingOffsets": "earliest",
        "startingOffsetsByTimestamp": '{"t":{"0":7}}',
        "endingOffsetsByTimestamp": '{"t":{"0":9}}',
        "endingOffsets": "latest",
    }
    assert source(**options).start == Bound("startingOffsetsByTimestamp", timestamps={"t": {0: 7}})
    assert source(**options).end == Bound("endingOffsetsByTimestamp", timestamps={"t": {0: 9}})
    both = source(**options, startingTimestamp="5", endingTimestamp=" 6 ")
    assert both.start == Bound("startingTimestamp", timestamp=5)
    assert both.end == Bound("endingTimestamp", timestamp=6)


@pytest.mark.parametrize(
    ("options", "at_end"),
    [
        ({}, True),
        ({"startingOffsets": "earliest"}, False),
        ({"startingOffsets": '{"t":{"0":3,"1":-2}}'}, False),
        ({"startingOffsets": '{"t":{"0":3,"1":-1}}'}, True),
        ({"startingTimestamp": "5"}, False),
        ({"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "latest"}, True),
        ({"startingOffsetsByTimestamp": '{"t":{"0":3}}', "startingOffsetsByTimestampStrategy": "latest"}, True),
    ],
)
def test_where_a_query_may_begin_at_the_end(options, at_end):
    assert source(True, **options).begins_at_end is at_end


def test_assign_names_each_partition_once():
    given = {"kafka.bootstrap.servers": "h:1", "assign": ' {"t":[2,0,2],"u":[1]} '}
    assert source_options(given, streaming=False).topics == Topics("assign", assigned={"t": [0, 2], "u": [1]})


@pytest.mark.parametrize(
    ("text", "ms"),
    [("250", 250), ("250ms", 250), ("2s", 2_000), ("3m", 180_000), ("3min", 180_000), (" 1 H", 3_600_000)],
)
def test_durations(text, ms):
    assert source(True, maxTriggerDelay=text).max_trigger_delay_ms == ms
    assert source(True).max_trigger_delay_ms == 15 * 60_000


def test_columns_come_in_sparks_order():
    assert source(columns="OFFSET, value").columns == ("value", "offset")
    assert source(columns="headers,key", includeHeaders="true").columns == ("key", "headers")


def test_a_reader_neither_commits_nor_makes_topics():
    options = source(**{"kafka.group.id": "g", "kafkaConsumer.pollTimeoutMs": "500"})
    assert dict(options.reader) == {
        "bootstrap.servers": "h:1",
        "group.id": "g",
        "enable.auto.commit": "false",
        "allow.auto.create.topics": "false",
        "default.api.timeout.ms": "500",
    }
    assert dict(source(includeHeaders="true").reader)["include.headers"] == "true"
    given = dict(source(**{"kafka.default.api.timeout.ms": "7"}).reader)
    assert given["default.api.timeout.ms"] == "7"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kafka.bootstrap.servers": ""}, r"kafka\.bootstrap\.servers must be set"),
        ({"topic": " "}, "option topic is empty"),
        ({"path": "t"}, "the headrace sink has no path: name the topic"),
        ({"subscribe": "t"}, "unknown option subscribe of the headrace sink"),
        ({"topics": "t"}, "unknown option topics of the headrace sink; did you mean topic"),
        ({"kafka.value.serializer": "x"}, "use value.format"),
    ],
)
def test_sink_refuses(options, message):
    with pytest.raises(ConfigError, match=message):
        sink_options({"kafka.bootstrap.servers": "h:1", **options})


def test_sink_takes_what_spark_adds():
    given = {"kafka.bootstrap.servers": "h:1", "topic": " t ", "kafka.acks": "1"}
    options = sink_options({**given, "checkpointLocation": "/c"})
    assert (options.topic, options.client) == ("t", (("acks", "1"), ("bootstrap.servers", "h:1")))


def rows_of(page: str, heading: str) -> set[str]:
    """First cells of the table under a heading, without marks."""
    section = re.split(rf"^## {heading}$", page, flags=re.MULTILINE)[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, flags=re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_what_every_client_takes_is_what_the_page_of_options_says():
    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    assert rows_of(page, "All clients") == COMMON


def test_the_page_on_spark_has_every_option():
    page = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    assert rows_of(page, "Source options") == {*SOURCE, "kafka.bootstrap.servers", "kafka.*", "headrace.*"}
    assert rows_of(page, "Sink options") == {*SINK, "kafka.bootstrap.servers", "kafka.*", "headrace.*"}


def test_our_own_client_options_need_no_prefix():
    for given in ({"headrace.datapath": "shm"}, {"kafka.headrace.datapath": "shm"}, {"Headrace.Datapath": "shm"}):
        assert dict(source(**given).client)["headrace.datapath"] == "shm"
        sink = sink_options({"kafka.bootstrap.servers": "h:1", "topic": "t", **given})
        assert dict(sink.client)["headrace.datapath"] == "shm"
    twice = {"headrace.datapath": "shm", "kafka.headrace.datapath": "tcp"}
    with pytest.raises(ConfigError, match=r"headrace\.datapath and kafka\.headrace\.datapath are one option"):
        source(**twice)
