"""The peer's method table and encoders compared with pamqp in both directions."""

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
    values = {argument: {"k": "v"} if kind == "T" else VALUES[kind] for argument, kind in parts}
    raw = method(name, 5, **values)
    size, channel, got = pamqp_frame.unmarshal(raw)
    assert (size, channel) == (len(raw), 5)
    assert got.index == class_id << 16 | method_id
    assert got.name == "".join(
        part.replace("-", " ").title().replace(" ", "") + dot
        for part, dot in zip(name.split("."), (".", ""), strict=True)
    )
    decoded = [value.decode() if isinstance(value, (bytes, bytearray)) else value for _, value in got]
    assert decoded == list(values.values())
    assert decode_method(raw[7:-1])[0] == name


def test_table_has_all_methods_of_pamqp() -> None:
    ours = {class_id << 16 | method_id for class_id, method_id in NAMES}
    assert set(commands.INDEX_MAPPING) <= ours


def test_properties_are_encoded_like_pamqp() -> None:
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
    timestamp = datetime.fromtimestamp(1_700_000_000, UTC)
    pamqp_properties = commands.Basic.Properties(**given, timestamp=timestamp, message_type="t")
    raw = pamqp_frame.marshal(ContentHeader(0, 5, pamqp_properties), 1)[7:-1]
    assert raw[12:] == properties(**given, timestamp=1_700_000_000, type="t")


def test_pamqp_decodes_our_tables() -> None:
    from pamqp.decode import field_table

    value = {"t": True, "I": -5, "l": 2**40, "d": 1.5, "S": "x", "V": None, "A": [1, "two", {"f": False}], "F": {}}
    raw = table(value)
    assert field_table(raw) == (len(raw), value)
