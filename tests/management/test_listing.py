"""The listing functions alone: slices, sorting, columns, values."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal
from typing import Any

import pytest

from amqpd.management import time_slice
from amqpd.management.listing import CHUNK_BYTES, amqp_to_json, document_reply, listing
from amqpd.management.request import BadRequest
from amqpd.protocol.field_table import Timestamp


class FakeRequest:
    """The attributes of a request that `listing` reads."""

    def __init__(self, **query: str) -> None:
        self.query = query
        self.part = False


async def listed(objects: list[Any], **query: str) -> Any:
    reply = await listing(FakeRequest(**query), objects, lambda each: each, lambda each: each["name"])
    return json.loads(b"".join(reply.body))


ITEMS = [{"name": f"n{index:04}", "size": index * 7919 % 3001, "in": {"deep": -index}} for index in range(3000)]


class TestSlices:
    @pytest.mark.parametrize("query", [{}, {"sort": "size"}, {"page": "1", "name": "n"}])
    async def test_listing_yields_after_every_item_with_zero_slices(self, monkeypatch, query):
        """The test counts the turns of another task."""
        monkeypatch.setattr(time_slice, "SLICE_S", 0.0)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(count())
        await listed(ITEMS, **query)
        other.cancel()
        assert turns >= len(ITEMS)

    async def test_document_reply_yields_after_every_item_with_zero_slices(self, monkeypatch):
        monkeypatch.setattr(time_slice, "SLICE_S", 0.0)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(count())
        value = {"version": "1", "queues": ITEMS, "none": []}
        assert json.loads(b"".join((await document_reply(value)).body)) == value
        other.cancel()
        assert turns >= len(ITEMS)

    async def test_large_answer_is_split_into_chunks(self):
        reply = await listing(FakeRequest(), ITEMS, lambda each: each, lambda each: each["name"])
        assert len(reply.body) > 2
        assert max(map(len, reply.body)) < 2 * CHUNK_BYTES


class TestSorting:
    async def test_sorted_slices_are_merged(self):
        assert await listed(ITEMS, sort="size") == sorted(ITEMS, key=lambda item: item["size"])
        descending = await listed(ITEMS, sort="size", sort_reverse="true")
        assert [item["size"] for item in descending] == sorted((item["size"] for item in ITEMS), reverse=True)

    async def test_sort_by_nested_column(self):
        assert await listed(ITEMS, sort="in.deep") == ITEMS[::-1]

    async def test_sort_of_values_of_different_types_does_not_fail(self):
        values = {"a": None, "b": "text", "c": 3, "d": True}
        items = [{"name": name, "x": x} for name, x in values.items()]
        assert [item["name"] for item in await listed(items, sort="x")] == ["a", "d", "c", "b"]
        assert {item["name"] for item in await listed(items, sort="none")} == set(values)

    async def test_missing_and_null_values_sort_as_zero(self):
        """RabbitMQ: a missing number counts as 0, so the largest ones come first in reverse."""
        items = [{"name": "a", "x": {}}, {"name": "b", "x": {"n": 5}}, {"name": "c", "x": {"n": None}}]
        assert [item["name"] for item in await listed(items, sort="x.n")] == ["a", "c", "b"]
        assert [item["name"] for item in await listed(items, sort="x.n", sort_reverse="true")] == ["b", "c", "a"]


class TestNames:
    async def test_pattern_may_begin_with_look_ahead(self):
        """RabbitMQ's pattern to hide the predeclared exchanges."""
        items = [{"name": "amq.topic"}, {"name": "Orders"}]
        query = {"page": "1", "use_regex": "true"}
        for name in (r"^(?!amq\.).*", r"(?i)^(?!AMQ\.).*", "orders"):
            assert (await listed(items, name=name, **query))["items"] == [{"name": "Orders"}]


class TestColumns:
    async def test_nested_column_keeps_its_structure(self):
        assert await listed(ITEMS[:1], columns="in.deep,none.at.all") == [{"in": {"deep": 0}}]

    async def test_too_many_columns_are_refused(self):
        with pytest.raises(BadRequest):
            await listed(ITEMS[:1], columns=",".join(["a.b"] * 1000))


def test_amqp_values_become_json_values():
    value = {
        "t": Timestamp(7), "d": Decimal("1.5"), "b": b"\xff", "x": bytearray(b"ab"), "f": float("inf"),
        "n": None, "l": [True, {"k": 2**63}],
    }  # fmt: skip
    expected = {"t": 7, "d": 1.5, "b": "/w==", "x": "YWI=", "f": "inf", "n": None, "l": [True, {"k": 2**63}]}
    assert amqp_to_json(value) == expected
    assert json.loads(json.dumps(amqp_to_json(value))) == expected
