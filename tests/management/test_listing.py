"""Lists by themselves: slices, sorting, columns, values."""

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


class Asked:
    """What `listing` reads of a call."""

    def __init__(self, **query: str) -> None:
        self.query = query
        self.part = False


async def listed(objects: list[Any], **query: str) -> Any:
    reply = await listing(Asked(**query), objects, lambda each: each, lambda each: each["name"])
    return json.loads(b"".join(reply.body))


ITEMS = [{"name": f"n{index:04}", "size": index * 7919 % 3001, "in": {"deep": -index}} for index in range(3000)]


class TestSlices:
    @pytest.mark.parametrize("query", [{}, {"sort": "size"}, {"page": "1", "name": "n"}])
    async def test_the_loop_has_its_turn(self, monkeypatch, query):
        """With slices of no length at all every item gives way; the turns of another task are counted."""
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

    async def test_a_document_gives_way_too(self, monkeypatch):
        monkeypatch.setattr(time_slice, "SLICE_S", 0.0)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(count())
        given = {"version": "1", "queues": ITEMS, "none": []}
        assert json.loads(b"".join((await document_reply(given)).body)) == given
        other.cancel()
        assert turns >= len(ITEMS)

    async def test_large_answers_come_in_chunks(self):
        reply = await listing(Asked(), ITEMS, lambda each: each, lambda each: each["name"])
        assert len(reply.body) > 2
        assert max(map(len, reply.body)) < 2 * CHUNK_BYTES


class TestSorting:
    async def test_runs_are_merged(self):
        assert await listed(ITEMS, sort="size") == sorted(ITEMS, key=lambda item: item["size"])
        downwards = await listed(ITEMS, sort="size", sort_reverse="true")
        assert [item["size"] for item in downwards] == sorted((item["size"] for item in ITEMS), reverse=True)

    async def test_a_deeper_column(self):
        assert await listed(ITEMS, sort="in.deep") == ITEMS[::-1]

    async def test_kinds_do_not_meet(self):
        values = {"a": None, "b": "text", "c": 3, "d": True}
        items = [{"name": name, "x": x} for name, x in values.items()]
        assert [item["name"] for item in await listed(items, sort="x")] == ["d", "c", "b", "a"]
        assert {item["name"] for item in await listed(items, sort="none")} == set(values)


class TestColumns:
    async def test_structure_stays(self):
        assert await listed(ITEMS[:1], columns="in.deep,none.at.all") == [{"in": {"deep": 0}}]

    async def test_a_bomb(self):
        with pytest.raises(BadRequest):
            await listed(ITEMS[:1], columns=",".join(["a.b"] * 1000))


def test_plain_values():
    given = {
        "t": Timestamp(7), "d": Decimal("1.5"), "b": b"\xff", "x": bytearray(b"ab"), "f": float("inf"),
        "n": None, "l": [True, {"k": 2**63}],
    }  # fmt: skip
    wanted = {"t": 7, "d": 1.5, "b": "/w==", "x": "YWI=", "f": "inf", "n": None, "l": [True, {"k": 2**63}]}
    assert amqp_to_json(given) == wanted
    assert json.loads(json.dumps(amqp_to_json(given))) == wanted
