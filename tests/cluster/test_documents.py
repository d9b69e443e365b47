"""JSON documents of several nodes: parsed and written in slices, without blocking the event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpd.cluster import peer_http
from amqpd.cluster.peer_http import encode_body, parse_json, sliced_reply

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def run_to_end(work: Coroutine[Any, Any, Any]) -> Any:
    """Run the coroutine to its end and return its result. It may only yield to the loop."""
    try:
        while True:
            work.send(None)
    except StopIteration as end:
        return end.value


@pytest.mark.slow
@given(VALUES, st.sampled_from([None, 1]))
def test_sliced_parse_equals_json_loads(value: object, indent: int | None) -> None:
    text = json.dumps(value, indent=indent).encode()
    documents_at_once, peer_http.AT_ONCE = peer_http.AT_ONCE, 0  # type: ignore[misc]
    try:
        assert run_to_end(parse_json(text)) == value
    finally:
        peer_http.AT_ONCE = documents_at_once  # type: ignore[misc]


@pytest.mark.slow
@given(st.dictionaries(st.text(), VALUES))
def test_sliced_reply_and_encoded_body_are_valid_json(value: dict[str, Any]) -> None:
    reply = run_to_end(sliced_reply(value))
    assert json.loads(b"".join(reply.body or [])) == value  # type: ignore[arg-type]
    assert json.loads(run_to_end(encode_body(value)) or b"") == value


@pytest.mark.parametrize("text", ["", "[1", "[1}", '{"a" 1}', '{"a":1', "[1] 2", "nothing"])
async def test_invalid_json_is_a_value_error(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_http, "AT_ONCE", -1)
    with pytest.raises(ValueError):
        await parse_json(text.encode())


async def test_ten_thousand_queues_do_not_block_the_event_loop() -> None:
    arguments = {"x-queue-type": "quorum", "x-max-length": 5}
    item = {"vhost": "/", "durable": True, "auto_delete": False, "arguments": arguments}
    document = {"queues": [{"name": f"queue {number}", **item} for number in range(10_000)]}
    text = json.dumps(document).encode()
    turns = 0

    async def ticking() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    ticks = asyncio.create_task(ticking())
    found = await parse_json(text)
    read, turns = turns, 0
    reply = await sliced_reply(found)
    ticks.cancel()
    assert found == document
    assert json.loads(b"".join(reply.body or [])) == document  # type: ignore[arg-type]
    assert read >= 5
    assert turns >= 5
