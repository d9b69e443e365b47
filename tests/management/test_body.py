"""JSON bodies: a large one is walked in slices, and says the same as the parser that takes it at once."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from profiles import examples

from amqpd.management import json_body, time_slice
from amqpd.management.json_body import CONTAINERS_MAX, JSON_DEPTH_MAX, STRUCTURE_MAX, parse_json
from amqpd.management.request import BadRequest, TooLarge
from amqpd.management.time_slice import free_in_slices

MANY = 3 * 1024 * 1024


async def turns_while(work, monkeypatch) -> tuple[object, int]:
    """What it returns or raises, and how often the loop came round meanwhile; a slice ends as soon as it is asked."""
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
async def test_a_body_of_many_values_is_refused_before_it_is_work(text, wrong, monkeypatch):
    """9 MB of `{}` held everybody for 0.9 s."""
    answer, _ = await turns_while(parse_json(text), monkeypatch)
    assert isinstance(answer, TooLarge | BadRequest)
    assert wrong in answer.reason


async def test_definitions_are_read_in_slices(monkeypatch):
    document = {"queues": [{"name": f"q{n}", "arguments": {"x-max-length": n}} for n in range(20_000)]}
    answer, turns = await turns_while(parse_json(json.dumps(document), True), monkeypatch)
    assert answer == document
    assert turns > 20_000
    _, turns = await turns_while(free_in_slices(answer), monkeypatch)
    assert turns >= 20
    assert answer == {"queues": []}


async def test_one_item_of_definitions_is_bounded():
    item = {"name": "q", "arguments": {"a": [{}] * STRUCTURE_MAX}}
    with pytest.raises(TooLarge, match="in one item"):
        await parse_json(json.dumps({"queues": [{"name": "first"}, item]}), True)
    with pytest.raises(TooLarge, match=str(CONTAINERS_MAX)):
        await parse_json("[" + "{}," * CONTAINERS_MAX + "{}]", True)


@pytest.mark.parametrize("payload", ["x" * 9_000_000, '"\\\n' * 100_000, "\U0001f600é" * 30_000])
@pytest.mark.parametrize("ascii_only", [False, True])
async def test_a_long_string_is_a_string(payload, ascii_only):
    document = {"payload": payload, "properties": {}}
    assert await parse_json(json.dumps(document, ensure_ascii=ascii_only)) == document


async def test_pairs_that_a_piece_cuts_stay_together():
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
async def test_what_is_no_json(text):
    with pytest.raises(ValueError):
        json.loads(text, parse_constant=json_body._no_constant, parse_float=json_body._finite)
    with pytest.raises(ValueError):
        await parse_json(text)


@pytest.mark.parametrize("half", ["\\ud83d", "\\ude00", "\\ud83d x"])
async def test_half_a_pair_is_no_text(half):
    with pytest.raises(UnicodeEncodeError):
        await parse_json(f'["{LONG}", "{half}"]')
    with pytest.raises(UnicodeEncodeError):
        await parse_json(f'["{LONG}{half}"]')


async def test_depth_at_the_limit_wherever_it_is():
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
def test_walked_or_at_once_is_the_same(value, ascii_only, indent, piece):
    """With pieces so small that everything is walked."""
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)

    async def walked() -> object:
        return await json_body.SlicedJsonParser(text, False).document()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_body, "PIECE", piece)
        patch.setattr(json_body, "_STRING_PIECE", max(piece, 12))
        try:
            assert asyncio.run(walked()) == json.loads(text)
        except ValueError:
            assert piece < 32  # a number longer than a piece
