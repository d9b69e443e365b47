"""Lists of the API: filtered, sorted, paged, cut to columns and encoded in slices.

The loop has its turn between slices, so a list of ten thousand queues does not block clients.

Query parameters:

- `page` and `page_size` (at most 500) ask for a page: RabbitMQ's object with counts. Otherwise the answer is an array.
- `name` keeps items whose name contains it. With `use_regex=true` it is a pattern like those of policies. Case makes no
  difference.
- `sort` names a column; dots go into nested objects. `sort_reverse=true` reverses the order.
- `columns` names the fields to keep.
- `msg_rates_age` and `msg_rates_incr` ask for samples: how many seconds back, and how many seconds apart.
  There is such a pair for `lengths`, `data_rates` and `node_stats`, too.
"""

from __future__ import annotations

import heapq
import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from math import isfinite
from types import MappingProxyType
from typing import Any, Final, TypeVar

from amqpd.auth.patterns import InvalidPattern, compile_search
from amqpd.management.request import ApiRequest, ApiResponse, BadRequest, PageOutOfRange, is_true, parse_int, to_json
from amqpd.management.samples import NO_SPANS, SampleRange, SampleRanges
from amqpd.management.time_slice import TimeSlice

SAMPLES_MAX: Final = 1000
LISTED_MAX: Final = 1_000_000
"""Samples in one answer. A million are 250 MB of JSON, all of it in memory at once."""
PREFIXES: Final = ("msg_rates", "lengths", "data_rates", "node_stats")
_AGE_MAX_S: Final = 7 * 86400


def requested_ranges(query: Mapping[str, str]) -> SampleRanges:
    """Return the sample ranges that the query asks for. Raises: BadRequest."""
    if not any(f"{prefix}_age" in query for prefix in PREFIXES):
        return NO_SPANS
    return SampleRanges(*(_span(query, prefix) for prefix in PREFIXES))


def check_sample_count(query: Mapping[str, str], count: int) -> None:
    """Raise BadRequest if an answer with `count` objects would have more than LISTED_MAX samples."""
    samples = sum(span.age // span.increment + 1 for span in requested_ranges(query) if span is not None)
    if samples * count > LISTED_MAX:
        raise BadRequest(f"{samples} samples of each of {count} are too many: ask for a page, or for fewer samples")


def _span(query: Mapping[str, str], prefix: str) -> SampleRange | None:
    age, increment = query.get(f"{prefix}_age"), query.get(f"{prefix}_incr")
    if age is None or increment is None:
        return None
    found = SampleRange(
        parse_int(f"{prefix}_age", age, 1, _AGE_MAX_S), parse_int(f"{prefix}_incr", increment, 1, _AGE_MAX_S)
    )
    parse_int(f"{prefix}_age divided by {prefix}_incr", found.age // found.increment, 0, SAMPLES_MAX)
    return found


PAGE_SIZE: Final = 100
PAGE_SIZE_MAX: Final = 500
COLUMNS_MAX: Final = 64
CHUNK_BYTES: Final = 64 * 1024
LINES: Final = "application/x-ndjson"
"""Content type of one node's part of a list. The whole is not JSON; each line is."""
_RUN: Final = 500

T = TypeVar("T")
Item = dict[str, Any]


def amqp_to_json(value: object) -> Any:
    """Return an AMQP field value as a JSON value. Bytes become base64, decimals numbers."""
    if value is None or isinstance(value, bool | int | str):
        return int(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bytes | bytearray):
        return b64encode(value).decode()
    if isinstance(value, dict):
        return {str(name): amqp_to_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [amqp_to_json(item) for item in value]
    return str(value)


class Body:
    """JSON text in chunks of CHUNK_BYTES. Joining it to one text would copy megabytes in a single step."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._parts: list[str] = []
        self._size = 0

    def add(self, text: str) -> None:
        self._parts.append(text)
        self._size += len(text)
        if self._size >= CHUNK_BYTES:
            self._chunks.append("".join(self._parts).encode())
            self._parts.clear()
            self._size = 0

    async def add_items(self, items: Iterable[object], slices: TimeSlice) -> None:
        """Add the elements of an array, without its brackets. None adds nothing; it is only a place to yield to the
        loop.
        """
        comma = ""
        for item in items:
            if item is not None:
                self.add(comma + to_json(item))
                comma = ","
            await slices.yield_if_due()

    def finished(self) -> list[bytes]:
        self._chunks.append("".join(self._parts).encode())
        return self._chunks


async def collect(found: Iterable[T], slices: TimeSlice) -> list[T]:
    """Collect a generator in slices. Its source must be a snapshot, because others change the objects meanwhile."""
    objects: list[T] = []
    for each in found:
        objects.append(each)
        await slices.yield_if_due()
    return objects


async def sort_by_name(objects: Sequence[T], name_of: Callable[[T], str], slices: TimeSlice) -> list[T]:
    """Sort by name in short runs and merge them. Sorting a hundred thousand queues at once would block the loop."""
    runs = []
    for start in range(0, len(objects), _RUN):
        runs.append(sorted(objects[start : start + _RUN], key=name_of))
        await slices.yield_if_due()
    return await collect(heapq.merge(*runs, key=name_of), slices)


async def listing(
    call: ApiRequest,
    objects: Sequence[T],
    render: Callable[[T], Item],
    name_of: Callable[[T], str | tuple[str, ...]],
    keys: Mapping[str, Callable[[T], object]] = MappingProxyType({}),
) -> ApiResponse:
    """Return the reply for a list.

    Args:
        objects: a snapshot, in the order of an answer without `sort`.
        name_of: the text in which `name` is searched; of several texts one must match.
        keys: column -> sort key, for columns that can be read without `render`.

    Raises: BadRequest.

    Cost: rendering and encoding of the items in the answer. Sorting by a column without a key renders every object
    once more.
    """
    slices = TimeSlice()
    total = len(objects)
    query = call.query
    keep = parse_columns(query.get("columns", ""))
    name = query.get("name", "")
    if name and "page" in query:
        matches = _matcher(name, is_true(query, "use_regex"))
        found: list[T] = []
        for one in objects:
            names = name_of(one)
            if matches(names) if isinstance(names, str) else any(map(matches, names)):
                found.append(one)
            await slices.yield_if_due()
        objects = found
    filtered = len(objects)
    first, last = 0, filtered
    head, tail = "[", "]"
    sort = query.get("sort", "")
    if "page" in query:
        page, size = requested_page(query)
        # A node's part begins with its first object: the page can be anywhere in the merged list.
        first, last = 0 if call.part else (page - 1) * size, page * size
        if not call.part:
            head, tail = page_head(filtered, page, size, total) + ',"items":[', "]}"
    check_sample_count(query, max(0, min(last, filtered) - first))
    if sort:
        objects = await _sorted(objects, keys.get(sort) or _column(render, sort), query, slices)
    shown = objects[first:last] if "page" in query else objects
    if call.part:
        return await _part(shown, render, f'{{"total":{total},"filtered":{filtered}}}\n', sort, keep, slices)
    # Rendered one by one while they are encoded: ten thousand live dicts cost the garbage collector more than
    # rendering.
    items = map(render, shown)
    body = Body()
    body.add(head)
    await body.add_items((_cut(item, keep) for item in items) if keep else items, slices)
    body.add(tail)
    return ApiResponse(200, body.finished())


def page_head(filtered: int, page: int, size: int, total: int) -> str:
    """Return the JSON before the items of a page, without the closing brace. rabbit: its names, in its order, and no
    page of a list without items, although page 1 may be asked for.

    Raises: PageOutOfRange.
    """
    pages = -(-filtered // size)
    if page > max(1, pages):
        raise PageOutOfRange(f"Page out of range, page: {page} page size: {size}, len: {filtered}")
    count = max(0, min(size, filtered - (page - 1) * size))
    return (
        f'{{"filtered_count":{filtered},"item_count":{count},"page":{page},"page_count":{pages},'
        f'"page_size":{size},"total_count":{total}'
    )


def requested_page(query: Any) -> tuple[int, int]:
    """Return the number of the requested page, from 1, and its size. Raises: BadRequest."""
    page, size = _number(query, "page", 1), _number(query, "page_size", PAGE_SIZE)
    if size > PAGE_SIZE_MAX:
        raise BadRequest(f"page_size is at most {PAGE_SIZE_MAX}")
    return page, size


async def _part(
    objects: Sequence[T], render: Callable[[T], Item], head: str, sort: str, keep: list[list[str]], slices: TimeSlice
) -> ApiResponse:
    """Return this node's part of a list, for the node that merges the parts.

    The first line, `head`, has the counts. Each further line is the item's sort key, a tab and the item.
    """
    path = sort.split(".") if sort else []
    body = Body()
    body.add(head)
    for each in objects:
        item = render(each)
        key = to_json(_sort_key(_value_at(item, path))) if path else ""
        body.add(f"{key}\t{to_json(_cut(item, keep) if keep else item)}\n")
        await slices.yield_if_due()
    return ApiResponse(200, body.finished(), LINES)


def object_reply(call: ApiRequest, item: Item) -> ApiResponse:
    """Return the reply for a single object, cut to `columns`."""
    return ApiResponse(200, to_json(select_columns(item, call.query.get("columns", ""))).encode())


def select_columns(item: Item, names: str) -> Item:
    """Return the item with the named columns, separated by commas. Without names, return the whole item. Raises:
    BadRequest.
    """
    keep = parse_columns(names)
    return _cut(item, keep) if keep else item


async def document_reply(item: Item) -> ApiResponse:
    """Return the reply for an object; see `encode_object`."""
    return ApiResponse(200, await encode_object(item))


async def encode_object(found: Item, together: int = 0) -> list[bytes]:
    """Encode an object whose values may be long lists, or iterators that render the elements, in slices.

    Args:
        together: elements of a list to encode at once. 50 small ones take half the time of 50 single ones, about 1 ms.
            0: one by one, and None is left out, as in `Body.add_items`.
    """
    slices, body = TimeSlice(), Body()
    before = "{"
    for name, value in found.items():
        body.add(f"{before}{to_json(name)}:")
        before = ","
        if isinstance(value, list) and together:
            body.add("[")
            for start in range(0, len(value), together):
                body.add(("," if start else "") + to_json(value[start : start + together])[1:-1])
                await slices.yield_if_due()
            body.add("]")
        elif isinstance(value, list | Iterator):
            body.add("[")
            await body.add_items(value, slices)
            body.add("]")
        else:
            body.add(to_json(value))
    body.add("}" if found else "{}")
    return body.finished()


def _column(render: Callable[[T], Item], column: str) -> Callable[[T], object]:
    path = column.split(".")
    return lambda each: _value_at(render(each), path)


async def _sorted(objects: Sequence[T], key: Callable[[T], object], query: Any, slices: TimeSlice) -> list[T]:
    """Sort in runs and merge them, so that no step takes long. Values of different types are ordered by type.

    An item that was rendered for its key is dropped and rendered again for the answer: many live dicts slow the
    garbage collector down.
    """
    reverse = is_true(query, "sort_reverse")
    runs: list[list[tuple[tuple[int, Any], int]]] = []
    for start in range(0, len(objects), _RUN):
        run: list[tuple[tuple[int, Any], int]] = []
        for index, each in enumerate(objects[start : start + _RUN], start):
            run.append((_sort_key(key(each)), index))
            await slices.yield_if_due()
        run.sort(reverse=not reverse)
        runs.append(run)
    merged = heapq.merge(*map(_pop_all, runs), reverse=reverse)
    return await collect((objects[index] for _, index in merged), slices)


def _pop_all(run: list[T]) -> Iterator[T]:
    """Yield the elements from the end and remove each. Freeing a hundred thousand keys at once would block the loop
    too.
    """
    while run:
        yield run.pop()


def _sort_key(value: object) -> tuple[int, Any]:
    if value is None:
        return 0, 0  # rabbit: an item without the column, or with null, is before texts and counts as 0
    if isinstance(value, bool | int | float):
        return 0, value
    if isinstance(value, str):
        return 1, value
    return 2, json.dumps(value, sort_keys=True)


def _number(query: Any, name: str, default: int) -> int:
    text = query.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and 0 < len(text) < 10 and int(text) > 0):
        raise BadRequest(f"{name} must be a positive number")
    return int(text)


def _matcher(name: str, regex: bool) -> Callable[[str], bool]:
    if regex:
        try:
            return compile_search(f"(?i){name}").matches
        except InvalidPattern as error:
            raise BadRequest(str(error).replace("(?i)", "", 1)) from None
    part = name.lower()

    def contains(text: str) -> bool:
        return part in text.lower()

    return contains


def parse_columns(text: str) -> list[list[str]]:
    """Return the requested columns as paths into an item. An empty list means all columns. Raises: BadRequest."""
    names = [name for name in text.split(",") if name]
    if len(names) > COLUMNS_MAX:
        raise BadRequest(f"at most {COLUMNS_MAX} columns")
    return [name.split(".")[:8] for name in names]


def _value_at(item: Any, path: list[str]) -> Any:
    for name in path:
        if not isinstance(item, dict):
            return None
        item = item.get(name)
    return item


def _cut(item: Item, keep: list[list[str]]) -> Item:
    """Return the item with only these columns. A column with dots keeps its place in the structure."""
    cut: Item = {}
    for path in keep:
        at: Any = item
        for name in path:
            at = at.get(name, _ABSENT) if isinstance(at, dict) else _ABSENT
        if at is _ABSENT:
            continue
        into = cut
        for name in path[:-1]:
            deeper = into.setdefault(name, {})
            if not isinstance(deeper, dict):
                break
            into = deeper
        else:
            into[path[-1]] = at
    return cut


_ABSENT: Final = object()
