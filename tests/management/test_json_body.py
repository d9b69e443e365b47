"""JSON bodies: a large body is parsed in slices, with the same result as the standard parser."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from profiles import examples

from amqpd.management import json_body, time_slice
from amqpd.management.json_body import (
    CONTAINERS_MAX,
    JSON_DEPTH_MAX,
    STRUCTURE_MAX,
    BodyMemory,
    parse_json,
    read_body,
)
from amqpd.management.request import BadRequest, TooLarge, Unavailable
from amqpd.management.time_slice import free_in_slices

MANY = 3 * 1024 * 1024


async def run_and_count_turns(work, monkeypatch) -> tuple[object, int]:
    """Return the result or exception, and the number of loop turns meanwhile. Slices have length zero."""
    monkeypatch.setattr(time_slice, "SLICE_S", 0.0)
    task = asyncio.ensure_future(work)
    turns = 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    return task.exception() or task.result(), turns


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[" + "{}," * MANY + "{}]", "objects and lists"),
        ("[" + "{}," * 300_000 + "{}]", "characters"),
        ('{"a": [' + "1," * 300_000 + "1]}", "characters"),
        ("{" + ",".join(f'"{n}":0' for n in range(30_000)) + "}", "characters"),
        ('{"a": ' * 20_000 + "1" + "}" * 20_000, "deeper"),
        ("[" * 400_000, "deeper"),
    ],
)
async def test_body_of_many_values_is_refused_before_parsing(text, wrong, monkeypatch):
    """Parsing 9 MB of `{}` would block the loop for 0.9 s."""
    result, _ = await run_and_count_turns(parse_json(text), monkeypatch)
    assert isinstance(result, TooLarge | BadRequest)
    assert wrong in result.reason


async def test_definitions_are_parsed_and_freed_in_slices(monkeypatch):
    document = {"queues": [{"name": f"q{n}", "arguments": {"x-max-length": n}} for n in range(20_000)]}
    result, turns = await run_and_count_turns(parse_json(json.dumps(document), True), monkeypatch)
    assert result == document
    assert turns > 20_000
    _, turns = await run_and_count_turns(free_in_slices(result), monkeypatch)
    assert turns >= 20
    assert result == {"queues": []}


async def test_size_of_one_item_and_of_all_containers_is_limited():
    item = {"name": "q", "arguments": {"a": [{}] * STRUCTURE_MAX}}
    with pytest.raises(TooLarge, match="in one item"):
        await parse_json(json.dumps({"queues": [{"name": "first"}, item]}), True)
    with pytest.raises(TooLarge, match=str(CONTAINERS_MAX)):
        await parse_json("[" + "{}," * CONTAINERS_MAX + "{}]", True)


@pytest.mark.parametrize("payload", ["x" * 9_000_000, '"\\\n' * 100_000, "\U0001f600é" * 30_000])
@pytest.mark.parametrize("ascii_only", [False, True])
async def test_long_string_is_parsed(payload, ascii_only):
    document = {"payload": payload, "properties": {}}
    assert await parse_json(json.dumps(document, ensure_ascii=ascii_only)) == document


async def test_surrogate_pair_across_pieces_is_kept():
    for before in range(16):
        text = "a" * (STRUCTURE_MAX + before) + "\U0001f600" * 5000
        assert await parse_json(json.dumps([text])) == [text]


LONG = "x" * (STRUCTURE_MAX + 1)


@pytest.mark.parametrize(
    "text",
    [
        f'["{LONG}"', f'["{LONG}]', f'["{LONG}",]', f'["{LONG}" 1]', f'{{"{LONG}"}}', f'{{"{LONG}": }}',
        f'{{1: "{LONG}"}}', f'["{LONG}"] 1', f'["{LONG}", NaN]', f'["{LONG}", 1e999]', f'["{LONG}", tru]',
        f'["{LONG}\n"]', f'["{LONG}\\x"]', f'["{LONG}\\u12g4"]', f'["{LONG}\\"]', "[" + "1" * 100_000 + "]",
        f'["{LONG}", -]', f'["{LONG}", 01]',
    ],
)  # fmt: skip
async def test_invalid_json_is_refused(text):
    with pytest.raises(ValueError):
        json.loads(text, parse_constant=json_body._no_constant, parse_float=json_body._finite)
    with pytest.raises(ValueError):
        await parse_json(text)


@pytest.mark.parametrize("half", ["\\ud83d", "\\ude00", "\\ud83d x"])
async def test_half_surrogate_pair_is_refused(half):
    with pytest.raises(UnicodeEncodeError):
        await parse_json(f'["{LONG}", "{half}"]')
    with pytest.raises(UnicodeEncodeError):
        await parse_json(f'["{LONG}{half}"]')


async def test_depth_limit_applies_at_every_position():
    for outer in (1, JSON_DEPTH_MAX // 2, JSON_DEPTH_MAX):
        inner = JSON_DEPTH_MAX - outer
        for more in (0, 1):
            text = f'["{LONG}",' * outer + "[" * (inner + more) + "1" + "]" * (inner + more) + "]" * outer
            if more:
                with pytest.raises(BadRequest, match="deeper"):
                    await parse_json(text)
            else:
                await parse_json(text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=40,
)


@given(VALUES, st.booleans(), st.sampled_from([None, 1, "\t"]), st.sampled_from([8, 16, 64]))
@settings(deadline=None, max_examples=examples(200), suppress_health_check=list(HealthCheck))
def test_sliced_parser_equals_standard_parser(value, ascii_only, indent, piece):
    """The pieces are so small that the sliced parser handles everything."""
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)

    async def parse_in_slices() -> object:
        return await json_body.SlicedJsonParser(text, False).document()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_body, "PIECE", piece)
        patch.setattr(json_body, "_STRING_PIECE", max(piece, 12))
        try:
            assert asyncio.run(parse_in_slices()) == json.loads(text)
        except ValueError:
            assert piece < 32  # a number longer than a piece


class UploadingRequest(dict[str, Any]):
    """A request whose body arrives in these chunks."""

    def __init__(self, *chunks: bytes) -> None:
        super().__init__()
        self.headers: dict[str, str] = {}
        self.content_length = None
        self.content = self
        self._chunks = [*chunks, b""]

    async def readany(self) -> bytes:
        return self._chunks.pop(0)


async def test_bodies_of_all_requests_share_a_limited_memory() -> None:
    memory = BodyMemory(10)
    first, second, third = UploadingRequest(b"123", b"45"), UploadingRequest(b"1234", b"56"), UploadingRequest(b"1")
    assert await read_body(first, memory=memory) == b"12345"  # type: ignore[arg-type]
    with pytest.raises(Unavailable):
        await read_body(second, memory=memory)  # type: ignore[arg-type]
    assert memory.free_bytes == 1
    memory.release(second)  # type: ignore[arg-type]
    assert await read_body(third, memory=memory) == b"1"  # type: ignore[arg-type]
    for each in (first, second, third):
        memory.release(each)  # type: ignore[arg-type]
    assert memory.free_bytes == 10
