"""Rows as messages: errors, and times without a zone."""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa
import pytest

from amqpd.protocol import properties as p
from amqpd.storage.export.message_rows import BadRow, MessageRows, RowOptions


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"value": [b"a", None]}, "its value is null"),
        ({"value": [b"a", b"b"], "properties": [None, {"app_id": "x" * 300}]}, "short string of more than 255 bytes"),
    ],
)
def test_error_of_a_row_has_its_number_once(columns, words):
    with pytest.raises(BadRow, match=f"^{words}"):  # the import adds file and row
        list(MessageRows(RowOptions()).of_columns(columns, 2))
    with pytest.raises(BadRow, match=f"^row 1: {words}"):
        list(MessageRows(RowOptions()).of(pa.record_batch({name: pa.array(each) for name, each in columns.items()})))


def test_raw_properties_keep_an_empty_message_id():
    raw = p.encode_properties(p.Properties(delivery_mode=2, message_id=""))
    (message,) = MessageRows(RowOptions()).of_columns({"value": [b""], "raw_properties": [raw]}, 1)
    assert message[2] == raw


def test_time_without_a_zone_is_utc(monkeypatch):
    import time

    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        columns = {"value": [b""], "properties": [{"timestamp": datetime.fromisoformat("2026-01-01")}]}
        (message,) = MessageRows(RowOptions()).of_columns(columns, 1)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert p.decode_properties(message[2]).timestamp == 1767225600
