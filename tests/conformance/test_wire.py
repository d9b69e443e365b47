"""The peer's own table compared with pamqp's in both directions: two readers of one specification agree."""

from __future__ import annotations

from datetime import UTC

import pytest
from pamqp import commands
from pamqp import frame as pamqp_frame
from wire import NAMES, SIGNATURES, decode_method, method, properties, table

VALUES = {"o": 9, "B": 0xFEDC, "I": 0xFEDCBA98, "Q": 0x7EDCBA9876543210, "s": "short", "S": "long", "b": True}


@pytest.mark.filterwarnings("ignore:This command is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", sorted(set(SIGNATURES) - {"access.request", "access.request-ok"}))
def test_pamqp_decodes_our_encoding(name: str) -> None:
    class_id, method_id, signature = SIGNATURES[name]
    parts = [part.split(":") for part in signature.split()]
    given = {argument: {"k": "v"} if kind == "T" else VALUES[kind] for argument, kind in parts}
    raw = method(name, 5, **given)
    taken, channel, got = pamqp_frame.unmarshal(raw)
    assert (taken, channel) == (len(raw), 5)
    assert got.index == class_id << 16 | method_id
    assert got.name == "".join(
        part.replace("-", " ").title().replace(" ", "") + dot
        for part, dot in zip(name.split("."), (".", ""), strict=True)
    )
    found = [value.decode() if isinstance(value, (bytes, bytearray)) else value for _, value in got]
    assert found == list(given.values())
    assert decode_method(raw[7:-1])[0] == name


def test_no_method_of_pamqp_is_missing() -> None:
    ours = {class_id << 16 | method_id for class_id, method_id in NAMES}
    assert set(commands.INDEX_MAPPING) <= ours


def test_properties_as_pamqp_writes_them() -> None:
    from datetime import datetime

    from pamqp.header import ContentHeader

    given = {
        "content_type": "text/plain",
        "content_encoding": "utf-8",
        "headers": {"a": "b", "n": {"x": True}},
        "delivery_mode": 2,
        "priority": 7,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "60000",
        "message_id": "m",
        "user_id": "u",
        "app_id": "a",
    }
    moment = datetime.fromtimestamp(1_700_000_000, UTC)
    theirs = commands.Basic.Properties(**given, timestamp=moment, message_type="t")
    raw = pamqp_frame.marshal(ContentHeader(0, 5, theirs), 1)[7:-1]
    assert raw[12:] == properties(**given, timestamp=1_700_000_000, type="t")


def test_tables_as_pamqp_reads_them() -> None:
    from pamqp.decode import field_table

    value = {"t": True, "I": -5, "l": 2**40, "d": 1.5, "S": "x", "V": None, "A": [1, "two", {"f": False}], "F": {}}
    raw = table(value)
    assert field_table(raw) == (len(raw), value)
