"""Options of the Spark source: accepted values, and errors for refused ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from amqpd.storage.export.columns import BASE, COLUMNS, UnknownColumn, ddl
from amqpd.storage.export.files import BrokerSource, DirectorySource, SourceError
from amqpd.storage.export.offsets import batch_parts
from amqpd.storage.export.options import EARLIEST, LATEST, BadOption, NoSuchQueue, parse

AT = {"path": "/data", "queue": "q"}


def test_option_names_ignore_case() -> None:
    options = parse({"PATH": "/data", "queuepattern": "a.*", "includesettled": "TRUE", "splitbytes": "7"})
    assert (options.pattern, options.include_settled, options.split_bytes) == ("a.*", True, 7)


def test_default_options() -> None:
    options = parse(AT)
    assert options.source == DirectorySource("/data")
    assert (options.vhost, options.names, options.columns) == ("/", ("q",), BASE)
    assert options.fail_on_data_loss and options.check_crc and not options.include_settled
    assert options.starting is None and options.max_offsets_per_trigger is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"queue": "q"}, "path .* and url"),
        ({**AT, "url": "http://h"}, "path .* and url"),
        ({"path": "/data"}, "queue, queues and queuePattern"),
        ({**AT, "queues": "a"}, "only one"),
        ({**AT, "startingOffset": "1"}, "unknown option 'startingOffset'"),
        ({**AT, "startingOffsets": "soon"}, "startingOffsets: expected"),
        ({**AT, "startingOffsets": '{"q": -3}'}, "startingOffsets: expected"),
        ({**AT, "startingOffsets": '{"q": true}'}, "startingOffsets: expected"),
        ({**AT, "endingOffsets": "earliest"}, "would select no messages"),
        ({**AT, "startingTimestamp": "yesterday"}, "startingTimestamp: expected"),
        ({**AT, "splitBytes": "0"}, "splitBytes: expected"),
        ({**AT, "splitBytes": "²"}, "splitBytes: expected"),
        ({**AT, "startingOffsets": "²"}, "startingOffsets: expected"),
        ({**AT, "endingTimestamp": "²"}, "endingTimestamp: expected"),
        ({**AT, "maxOffsetsPerTrigger": "-1"}, "maxOffsetsPerTrigger"),
        ({**AT, "failOnDataLoss": "yes"}, "failOnDataLoss: expected true or false"),
        ({**AT, "queue": "q", "user": "u"}, "need url"),
        ({**AT, "transferCompression": "zstd"}, "need"),
        ({"url": "http://h", "queue": "q", "transferCompression": "gzip"}, "expected zstd or none"),
        ({"path": "/data", "queuePattern": "("}, "queuePattern"),
        ({**AT, "startingOffsetsByTimestampStrategy": "x"}, "error or latest"),
    ],
)
def test_invalid_options_are_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(BadOption, match=words):
        parse(given)


def test_columns_and_includes_choose_the_schema() -> None:
    assert parse({**AT, "columns": "offset, value"}).columns == ("offset", "value")
    assert parse({**AT, "columns": "offset", "includeHeaders": "true"}).columns == ("offset", "headers", "raw_headers")
    both = parse({**AT, "includeHeaders": "true", "includeProperties": "true"}).columns
    assert sorted(both) == sorted(COLUMNS)
    with pytest.raises(UnknownColumn, match="'body'"):
        parse({**AT, "columns": "body"})
    assert ddl(["offset", "headers"]) == "`offset` bigint, `headers` map<string,string>"


def test_offsets_and_timestamps_are_parsed() -> None:
    offsets = parse({**AT, "startingOffsets": '{"q": 7, "r": -1}'}).starting
    assert offsets is not None and [offsets.of(name) for name in "qrs"] == [7, LATEST, EARLIEST]
    assert parse({**AT, "startingTimestamp": "2026-01-31T12:00:00Z"}).starting_timestamp_ms == 1769860800000
    assert parse({**AT, "startingTimestamp": "2026-01-31T13:00:00+01:00"}).starting_timestamp_ms == 1769860800000
    assert parse({**AT, "startingTimestamp": "2026-01-31 12:00:00"}).starting_timestamp_ms == 1769860800000
    assert parse({**AT, "endingTimestamp": "1769860800000"}).ending_timestamp_ms == 1769860800000


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://u:p%40@h:1", BrokerSource("http://h:1", "u", "p@")),
        ("http://h", BrokerSource("http://h:15672", "guest", "guest")),
        ("https://[::1]:8/", BrokerSource("https://[::1]:8", "guest", "guest")),
    ],
)
def test_url_is_parsed(url: str, expected: BrokerSource) -> None:
    assert parse({"url": url, "queue": "q"}).source == expected


@pytest.mark.parametrize("url", ["amqp://h", "http://", "http://h/x", "http://h:port", "h:15672"])
def test_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(SourceError, match="url"):
        parse({"url": url, "queue": "q"})


def test_password_is_not_shown_in_repr() -> None:
    assert "secret" not in repr(parse({"url": "http://u:secret@h", "queue": "q"}))


def test_queues_are_found_by_name_and_pattern(written: Any) -> None:
    def found(**given: str) -> list[str]:
        return [queue.queue for queue in parse({"path": written.data_dir, **given}).queues()]

    assert found(queue="tasks") == found(queuePattern="t.*") == found(queues="other, tasks") == ["tasks"]
    assert found(queuePattern="task") == found(queue="other") == found(queue="tasks", vhost="v1") == []
    with pytest.raises(NoSuchQueue, match="'other'"):
        batch_parts(parse({"path": written.data_dir, "queues": "other, tasks"}))


def test_path_of_one_queue_needs_no_queue_name(written: Any) -> None:
    options = parse({"path": written.place})
    assert [queue.queue for queue in options.queues()] == ["tasks"]
    assert sum(part.stop - part.first for part in batch_parts(options)) >= 4000


def test_path_that_is_no_data_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="does not exist"):
        batch_parts(parse({"path": str(tmp_path / "none"), "queue": "q"}))
    with pytest.raises(SourceError, match="no data directory of amqpd"):
        batch_parts(parse({"path": str(tmp_path), "queue": "q"}))


def test_timestamps_select_records(lake: Any) -> None:
    for number in range(6):
        lake.append(b"%d" % number)
        lake.turn()
        lake.clock.now_ms += 1000
    start = 1_700_000_000_000
    assert lake.offsets(startingTimestamp=str(start + 2000), endingTimestamp=str(start + 4000)) == [2, 3]
    assert lake.offsets(startingTimestamp=str(start + 1500)) == [2, 3, 4, 5]
    with pytest.raises(BadOption, match="no record of that time"):
        lake.offsets(startingTimestamp=str(start + 9000))
    late = {"startingTimestamp": str(start + 9000), "startingOffsetsByTimestampStrategy": "latest"}
    assert lake.offsets(**late) == []
