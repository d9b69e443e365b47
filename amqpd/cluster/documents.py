"""Large JSON documents of several nodes, read and written in slices: the definitions of 10,000 queues are 2 MB, which
the parser takes in one go, and no thread helps: it gives nobody else a turn meanwhile.

What is read here other nodes have written, so it is not held against bounds as what clients send (management/json_body.py,
which takes ten times as long).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from amqpd.management.request import Reply, to_json
from amqpd.management.listing import Body
from amqpd.management.time_slice import Slices

AT_ONCE: Final = 64 * 1024
"""A text of so many characters is read in one piece, in half a millisecond."""
DEPTH: Final = 2
"""What is so deep in a document is read in one piece: a queue, a binding."""
_SPACE: Final = re.compile("[ \t\n\r]*")


async def parsed(data: bytes) -> Any:
    """What a node, this one or another, has answered. Raises: ValueError, it is no JSON."""
    text = data.decode()
    if len(text) <= AT_ONCE:
        return json.loads(text)
    walk = _Walk(text)
    value = await walk.value(0)
    if walk.peek():
        raise ValueError("more behind the end")
    return value


class _Walk:
    """at: the place of the next character."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._slices = Slices()
        self._decode = json.JSONDecoder().raw_decode

    def peek(self) -> str:
        """The next character that is no space; empty at the end."""
        found = _SPACE.match(self._text, self._at)
        assert found is not None  # nothing matches as well
        self._at = found.end()
        return self._text[self._at : self._at + 1]

    async def value(self, depth: int) -> Any:
        """The one that begins here. depth: in how many it is."""
        char = self.peek()
        if depth >= DEPTH or char not in "[{":
            value, self._at = self._decode(self._text, self._at)
            if self._slices.due:
                await self._slices.rest()
            return value
        return await (self._list(depth + 1) if char == "[" else self._object(depth + 1))

    def _takes(self, chars: str) -> str:
        char = self.peek()
        if not char or char not in chars:
            raise ValueError(f"one of {chars} is missing at {self._at}")
        self._at += 1
        return char

    async def _list(self, depth: int) -> list[Any]:
        found: list[Any] = []
        self._takes("[")
        if self.peek() == "]":
            self._takes("]")
            return found
        while True:
            found.append(await self.value(depth))
            if self._takes(",]") == "]":
                return found

    async def _object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self._takes("{")
        if self.peek() == "}":
            self._takes("}")
            return found
        while True:
            name = await self.value(DEPTH)
            self._takes(":")
            found[name] = await self.value(depth)
            if self._takes(",}") == "}":
                return found


async def encoded(value: object) -> bytes | None:
    """The body of a request to another node; None: it has none."""
    if value is None:
        return None
    if not isinstance(value, dict):
        return to_json(value).encode()
    return b"".join(await _chunks(value))


async def written(found: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Reply:
    """A reply: an object, whose lists may be long."""
    return Reply(200, await _chunks(found), headers=dict(headers or {}))


async def _chunks(found: Mapping[str, Any]) -> list[bytes]:
    slices, body = Slices(), Body()
    before = "{"
    for name, value in found.items():
        body.add(f"{before}{to_json(name)}:")
        before = ","
        if not isinstance(value, list):
            body.add(to_json(value))
            continue
        body.add("[")
        for index, item in enumerate(value):
            body.add(f"{',' if index else ''}{to_json(item)}")
            if slices.due:
                await slices.rest()
        body.add("]")
    body.add("}" if found else "{}")
    return body.finished()
