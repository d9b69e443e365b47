"""Request bodies: received with a size limit, and parsed as JSON without blocking the loop.

A body of up to STRUCTURE_MAX characters is parsed at once. `SlicedJsonParser` parses a larger one: objects and
lists of more than PIECE characters element by element, with a turn of the loop every few milliseconds; smaller
values at once by the C parser. A thread would not help, because the C parser holds the interpreter lock until it
has finished.

A body must not be expensive for its handler either. Strings may be long (a payload); the rest of a body has at most
STRUCTURE_MAX characters. In definitions this limit applies to each item of the lists.
"""

from __future__ import annotations

import asyncio
import json
import re
from math import isfinite
from typing import Any, Final, NoReturn
from urllib.parse import parse_qsl

from aiohttp import web

from amqpd.management.request import BadRequest, NotJson, TooLarge, TooLate, Unavailable
from amqpd.management.time_slice import TimeSlice

BODY_BYTES_MAX: Final = 10 * 1024 * 1024
BODIES_BYTES_MAX: Final = 128 * 1024 * 1024
"""Limit of all bodies together, from their first byte until their handlers have finished."""
FORM_BYTES_MAX: Final = 16 * 1024
"""Limit of a login form: its sender is unknown, and an address may have many connections."""
BODY_WAIT_S: Final = 60.0
JSON_DEPTH_MAX: Final = 64
STRUCTURE_MAX: Final = 64 * 1024
# In a whole body. Definitions of 10 MiB with 50,000 queues and their bindings have about 200,000.
CONTAINERS_MAX: Final = 400_000
PIECE: Final = 4096
_STRING_PIECE: Final = 16 * 1024
# rabbit: the content types that `curl -d` and simple clients send are read as JSON, too. Pages of other sites can send
# them, but the server refuses their requests earlier, by their origin.
_KINDS: Final = frozenset({"application/json", "application/x-www-form-urlencoded", "text/plain"})
_FORM: Final = "multipart/form-data"
_FIELDS_MAX: Final = 16
_BOUNDARY: Final = re.compile(r';\s*boundary="?([^";]+)"?', re.IGNORECASE)
_FILE_FIELD: Final = re.compile(rb';[ \t]*name="?file"?[ \t]*(?:;|\r|$)', re.IGNORECASE)
_SPACE: Final = re.compile(r"[ \t\n\r]*+")
_IN_STRING: Final = re.compile(r'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+')


class BodyMemory:
    """The memory of all bodies. Without a limit, a user could fill the broker's with the bodies of 256 connections."""

    def __init__(self, bytes_max: int = BODIES_BYTES_MAX) -> None:
        self.free_bytes = bytes_max
        self._reserved: dict[int, int] = {}  # by the request's id

    def reserve(self, request: web.BaseRequest, count: int) -> None:
        """Reserve bytes for the body of a request. Raises: Unavailable."""
        if count > self.free_bytes:
            raise Unavailable("too many large requests at once; try again")
        self.free_bytes -= count
        self._reserved[id(request)] = self._reserved.get(id(request), 0) + count

    def release(self, request: web.BaseRequest) -> None:
        """Release what was reserved for a request."""
        self.free_bytes += self._reserved.pop(id(request), 0)


async def read_body(
    request: web.BaseRequest, bytes_max: int = BODY_BYTES_MAX, memory: BodyMemory | None = None
) -> bytes:
    """Read the body and count its bytes as they arrive. Raises: BadRequest, NotJson, TooLarge, TooLate, Unavailable.

    A compressed body is refused: a small one can unpack to gigabytes.

    Args:
        memory: reserve the bytes there; the caller releases them.
    """
    if request.headers.get("Content-Encoding", "identity").strip().lower() not in ("identity", ""):
        raise NotJson("a compressed body is not accepted")
    if request.content_length is not None and request.content_length > bytes_max:
        raise TooLarge(f"a body has at most {bytes_max} bytes")
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_WAIT_S):
            while chunk := await request.content.readany():
                size += len(chunk)
                if size > bytes_max:
                    raise TooLarge(f"a body has at most {bytes_max} bytes")
                if memory is not None:
                    memory.reserve(request, len(chunk))
                parts.append(chunk)
    except TimeoutError:
        raise TooLate("the body did not arrive in time") from None
    except web.RequestPayloadError:
        raise BadRequest("the body is not valid HTTP") from None
    return b"".join(parts)


def parse_form(body: bytes) -> dict[str, str]:
    """Return the fields of an HTML form. Raises: BadRequest."""
    try:
        return dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=64, errors="strict"))
    except ValueError:
        raise BadRequest("the body is not a form") from None


def form_file(content_type: str, body: bytes) -> bytes:
    """Return the field `file` of a form with parts, as `curl -F` and a page send it. Raises: BadRequest."""
    boundary = _BOUNDARY.search(content_type)
    # The last piece is behind the form, or behind more fields than one needs.
    parts = (
        (b"\r\n" + body).split(b"\r\n--" + boundary[1].encode("utf-8", "surrogateescape"), _FIELDS_MAX)[1:-1]
        if boundary
        else []
    )
    for part in parts:
        head, _, content = part.partition(b"\r\n\r\n")
        if _FILE_FIELD.search(head):
            return content
    raise BadRequest("the form has no field file")


async def parse_body(request: web.BaseRequest, body: bytes, definitions: bool) -> object:
    """Return the body as JSON, None if there is none. Definitions may be the field `file` of a form (rabbit).

    Raises:
        NotJson: the content type is not JSON.
        BadRequest: the body is not JSON or nests too deep.
        TooLarge: it has more structure than allowed.
        UnicodeEncodeError: a string has half a surrogate pair, which no store can encode.
    """
    if not body or body.isspace() or request.method == "DELETE":
        return None
    kind = request.headers.get("Content-Type", "application/json").partition(";")[0].strip().lower()
    if definitions and kind == _FORM:
        body = form_file(request.headers["Content-Type"], body)
    elif kind not in _KINDS and not kind.endswith("+json"):
        raise NotJson("the body must be application/json")
    try:
        return await parse_json(body.decode("utf-8-sig"), definitions)
    except UnicodeEncodeError:
        raise
    except ValueError:
        raise BadRequest("not_json") from None


async def parse_json(text: str, definitions: bool = False) -> object:
    """Parse JSON. Raises: ValueError for other text. Cost: 10 MB/s for dense text, in slices."""
    if len(text) <= STRUCTURE_MAX:
        return _parse_at_once(text)
    await _count_containers(text)
    return await SlicedJsonParser(text, definitions).document()


async def _count_containers(text: str) -> None:
    """Raise TooLarge if the text has more than CONTAINERS_MAX objects and lists."""
    slices = TimeSlice()
    count = 0
    for start in range(0, len(text), STRUCTURE_MAX):
        end = start + STRUCTURE_MAX
        count += text.count("{", start, end) + text.count("[", start, end)
        if count > CONTAINERS_MAX:
            raise TooLarge(f"a body has at most {CONTAINERS_MAX} objects and lists")
        await slices.yield_if_due()


def _parse_at_once(text: str) -> object:
    try:
        value: object = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise _too_deep() from None
    _check(value, text, 0)
    return value


def _check(value: object, text: str, depth: int) -> None:
    """Check depth and strings of a value, which the C parser does not.

    Args:
        depth: the number of objects and lists around the value.

    Raises: BadRequest, UnicodeEncodeError.
    """
    if isinstance(value, dict | list) and depth + _depth(value) > JSON_DEPTH_MAX:
        raise _too_deep()
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode()


class SlicedJsonParser:
    """A parser for one large text, which yields to the loop between values.

    Attributes:
        at: index of the next character.
        structure: characters outside long strings so far; in definitions, of the current item.
    """

    def __init__(self, text: str, definitions: bool) -> None:
        self.text = text
        self.at = 0
        self.definitions = definitions
        self.structure = 0
        self.slices = TimeSlice()
        self.decoder = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)

    async def document(self) -> object:
        value = await self.value(0)
        if self.peek():
            raise ValueError("unexpected text after the value")
        return value

    async def value(self, depth: int) -> Any:
        """Parse the value that begins here.

        Args:
            depth: the number of objects and lists around it.
        """
        await self.slices.yield_if_due()
        if self.definitions and depth <= 2:
            self.structure = 0
        char = self.peek()
        small, value = self.small(depth)
        if small:
            return value
        if char in "{[" and depth >= JSON_DEPTH_MAX:
            raise _too_deep()
        if char == "{":
            return await self.object(depth + 1)
        if char == "[":
            return await self.list(depth + 1)
        if char == '"':
            return await self.string()
        raise ValueError("expected a value")

    def small(self, depth: int) -> tuple[bool, object]:
        """Parse a value of at most PIECE characters. Return (False, None) if the value is longer or is not JSON."""
        piece = self.text[self.at : self.at + PIECE]
        try:
            value, end = self.decoder.raw_decode(piece)
        except (ValueError, RecursionError):
            return False, None
        if end == PIECE and isinstance(value, int | float):
            return False, None  # it can have more digits
        _check(value, piece[:end], depth)
        self.pass_over(end)
        return True, value

    def peek(self) -> str:
        """Skip white space and return the next character, empty at the end of the text."""
        found = _SPACE.match(self.text, self.at)
        assert found is not None  # nothing matches as well
        self.at = found.end()
        return self.text[self.at : self.at + 1]

    def pass_over(self, count: int) -> None:
        self.at += count
        self.structure += count
        if self.structure > STRUCTURE_MAX:
            where = "in one item" if self.definitions else "outside of long strings"
            raise TooLarge(f"a body has at most {STRUCTURE_MAX} characters {where}")

    def expect(self, chars: str) -> str:
        char = self.peek()
        if not char or char not in chars:
            raise ValueError(f"expected one of {chars}")
        self.pass_over(1)
        return char

    async def list(self, depth: int) -> list[object]:
        self.expect("[")
        found: list[object] = []
        if self.peek() == "]":
            self.expect("]")
            return found
        while True:
            found.append(await self.value(depth))
            if self.expect(",]") == "]":
                return found

    async def object(self, depth: int) -> dict[str, object]:
        self.expect("{")
        found: dict[str, object] = {}
        if self.peek() == "}":
            self.expect("}")
            return found
        while True:
            if self.peek() != '"':
                raise ValueError("expected a name")
            name = await self.value(depth)
            self.expect(":")
            found[name] = await self.value(depth)
            if self.expect(",}") == "}":
                return found

    async def string(self) -> str:
        """Parse a string of any length in pieces. No piece ends within an escape."""
        parts: list[str] = []
        self.at += 1
        while True:
            found = _IN_STRING.match(self.text, self.at, self.at + _STRING_PIECE)
            assert found is not None  # nothing matches as well
            piece: str = self.decoder.decode(f'"{found[0]}"')
            if parts and piece and "\ud800" <= parts[-1][-1] <= "\udbff" and "\udc00" <= piece[0] <= "\udfff":
                pair = parts[-1][-1] + piece[0]
                parts[-1] = parts[-1][:-1]
                piece = pair.encode("utf-16", "surrogatepass").decode("utf-16") + piece[1:]
            if found.end() == self.at and self.text[self.at : self.at + 1] != '"':
                raise ValueError("a string without an end")
            self.at = found.end()
            if piece:
                parts.append(piece)
            if self.text[self.at : self.at + 1] == '"':
                self.at += 1
                break
            await self.slices.yield_if_due()
        for part in parts:
            if not part.isascii():
                part.encode()
        return "".join(parts)


def _too_deep() -> BadRequest:
    return BadRequest(f"the body nests deeper than {JSON_DEPTH_MAX}")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text} is too large")
    return number


def _depth(value: object) -> int:
    """Return the nesting depth of lists and objects. Cost: visits every element once."""
    depth = 0
    level: list[object] = [value]
    while level:
        deeper: list[object] = []
        for each in level:
            if isinstance(each, dict):
                deeper += each.values()
            elif isinstance(each, list):
                deeper += each
        depth += any(isinstance(each, dict | list) for each in level)
        level = deeper
    return depth
