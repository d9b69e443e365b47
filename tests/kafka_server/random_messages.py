"""Messages of kafka-python with valid form and random values."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

INTEGERS = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64}
TEXTS = ("", "a", "neighbour", "group", "..", "*", "\0", "é" * 200, "x" * 30_000, "-1", "0")


def random_value(field: Any, type_name: str, version: int, chance: random.Random) -> Any:
    if field.nullable_for_version_q(version) and chance.random() < 0.2:
        return None
    if field.is_struct_array():
        return [random_message(field.data_class, version, chance) for _ in range(chance.choice((0, 1, 1, 2, 50)))]
    if field.is_struct():
        return random_message(field.data_class, version, chance)
    if type_name.startswith("[]"):
        return [random_value(field.array_of, type_name[2:], version, chance) for _ in range(chance.randint(0, 3))]
    if type_name in INTEGERS:
        bits = INTEGERS[type_name] - (not type_name.startswith("u"))
        smallest = 0 if type_name.startswith("u") else -(1 << bits)
        return chance.choice((0, 1, 2, 3, max(-1, smallest), smallest, (1 << bits) - 1))
    if type_name in ("bytes", "records"):
        return chance.randbytes(chance.randint(0, 300))
    if type_name == "string":
        return chance.choice(TEXTS)
    if type_name == "bitfield":
        return {chance.randrange(31)} if chance.random() < 0.5 else None
    if type_name == "uuid":
        return UUID(int=chance.getrandbits(128))
    return chance.random() < 0.5 if type_name == "bool" else chance.random() * 1e9


def random_message(message_type: Any, version: int, chance: random.Random) -> Any:
    """Return a request, or a part of one, with valid form and random values."""
    values = {
        name: random_value(field, field.type_str, version, chance)
        for name, field in message_type.fields.items()
        if field.for_version_q(version)
    }
    return message_type(version=version, **values)
