"""JSON values as RabbitMQ's texts show them: Erlang's `~p`."""

from __future__ import annotations

import json
from collections.abc import Mapping


def term(value: object) -> str:
    """`{"a": [1, null]}` is `#{<<"a">> => [1,null]}`."""
    if value == "":
        return "<<>>"
    if isinstance(value, str):
        return f"<<{json.dumps(value, ensure_ascii=False)}>>"
    if isinstance(value, Mapping):
        return "#{" + ",".join(f"{term(key)} => {term(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(term(each) for each in value) + "]"
    return json.dumps(value)
