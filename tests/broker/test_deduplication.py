"""Deduplication cache of exchanges against a naive twin (sizes, TTLs, types), and message histories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from profiles import examples

from amqpd.broker.consumer import Destination
from amqpd.broker.message import Message, MessageRoute, make_message
from amqpd.broker.publish.deduplication import (
    HISTORY_BYTES_MAX,
    ID_BYTES_MAX,
    CacheEntry,
    DeduplicationCache,
    DuplicateMessage,
    MessageHistory,
    id_of,
)
from amqpd.broker.publish.exchange_state import MetadataCacheStore
from amqpd.protocol.properties import Properties, encode_properties, scan_properties
from amqpd.storage.metadata.rows import Change, Delete, SeenCacheRow, SeenRow

if TYPE_CHECKING:
    from conftest import Room

TRANSIENT = make_message(MessageRoute("x", "k"), b"\x00\x00", b"body", False, None)


class Twin:
    """The last `size` ids, each until its TTL ends."""

    def __init__(self, size: int, ttl_ms: int) -> None:
        self.size, self.ttl_ms = size, ttl_ms
        self.until: dict[object, float] = {}

    def publish(self, value: object, ttl: object, now_ms: int) -> bool:
        if self.until.get(value, 0) > now_ms:
            return False
        own = {400: 400, "600": 600, 0: 0}.get(ttl, self.ttl_ms or float("inf"))  # type: ignore[call-overload]
        self.until.pop(value, None)
        first = next(iter(self.until), None)
        if first is not None and (len(self.until) >= self.size or self.until[first] <= now_ms):
            del self.until[first]
        self.until[value] = now_ms + own
        return True


@given(
    st.integers(1, 4),
    st.sampled_from([0, 1000]),
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from([None, 400, "600", -1, "x", True, 0]), st.integers(0, 500))),
)
@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_cache_matches_naive_twin(room: Room, size: int, ttl_ms: int, publishes: list[tuple[int, object, int]]) -> None:
    clock = room.clock
    cache = DeduplicationCache(room.turn, room.timers, size, ttl_ms)
    twin = Twin(size, ttl_ms)
    for value, ttl, later_ms in publishes:
        clock.now_ms += later_ms
        found = list(cache.route_once(value, ttl, ["q"]))
        assert bool(found) is twin.publish(value, None if ttl is True else ttl, clock.now_ms)
        if found:
            entry = found[-1]
            assert found == ["q", entry] and isinstance(entry, CacheEntry)
            assert entry.accepts_with([Destination()]) and entry.enqueue(TRANSIENT)
        assert cache.count() == len(twin.until) <= size


def test_ids_of_values_of_all_types_differ() -> None:
    values = [0, "0", True, 0.0, None, b"0", [0], ["0"], {"a": 0}, {}, [], "x" * 5000, "x" * 5001, "", "é", "\udcff"]
    assert len({id_of(value) for value in values}) == len(values)
    assert max(len(id_of(value)) for value in values) <= ID_BYTES_MAX
    assert id_of({"a": 1, "b": 2}) == id_of({"b": 2, "a": 1})


def test_unroutable_message_is_not_cached(room: Room) -> None:
    cache = DeduplicationCache(room.turn, room.timers, 9, 0)
    entry = list(cache.route_once("a", None, ["q"]))[-1]
    assert isinstance(entry, CacheEntry) and not entry.accepts_with([])


def test_copy_of_a_transient_message_waits_for_the_sync_of_a_quorum_queue(room: Room) -> None:
    """The queue keeps the first message over a restart. A copy confirmed before its sync could be lost with it."""
    cache = DeduplicationCache(room.turn, room.timers, 9, 0)
    queue = room.queue("q", x_queue_type="quorum")
    entry = list(cache.route_once("a", None, [queue]))[-1]
    assert isinstance(entry, CacheEntry) and entry.accepts_with([queue])
    queue.prepare()
    assert queue.enqueue(TRANSIENT) and entry.enqueue(TRANSIENT)
    (copy,) = cache.route_once("a", None, [queue])
    assert isinstance(copy, DuplicateMessage)
    assert entry.keeps_all and copy.keeps_all, "the confirms of these transient messages wait"
    room.turn.schedule()
    room.turns()
    assert not cache.route_once("a", None, [queue])


def test_reserved_id_replaces_an_expired_one_whose_message_is_unsafe(room: Room) -> None:
    """A transaction reserves the ids of its messages. Two of them with one id would both be stored."""
    cache = DeduplicationCache(room.turn, room.timers, 9, 100)
    queue = room.queue("q", x_queue_type="quorum")
    queue.prepare()
    unsafe = list(cache.route_once("a", None, [queue]))[-1]
    assert isinstance(unsafe, CacheEntry) and unsafe.accepts_with([queue])
    assert queue.enqueue(TRANSIENT) and unsafe.enqueue(TRANSIENT)
    room.clock.now_ms += 200
    reserved = list(cache.route_once("a", None, [queue]))[-1]
    assert isinstance(reserved, CacheEntry) and reserved.accepts_with([queue])
    reserved.reserve()
    (copy,) = cache.route_once("a", None, [queue])
    assert isinstance(copy, DuplicateMessage)
    room.turn.schedule()
    room.turns()
    (copy,) = cache.route_once("a", None, [queue])
    assert isinstance(copy, DuplicateMessage), "the sync of the first message keeps the reserved id"
    reserved.refuse()
    assert len(cache.route_once("a", None, [queue])) == 2


def test_row_of_an_id_is_deleted_when_an_id_in_memory_pushes_it_out(room: Room) -> None:
    """Otherwise a restart would remember the id again, and drop a message that passed before."""
    written: list[Change] = []

    def commit(changes: Sequence[Change], done: Callable[[BaseException | None], None]) -> None:
        written.extend(changes)
        done(None)

    store = MetadataCacheStore(SeenCacheRow("cache", "/", "once"), commit, room.timers)
    cache = DeduplicationCache(room.turn, room.timers, 1, 0, store)
    for ident in ("stored", "in memory"):
        entry = list(cache.route_once(ident, None, ["q"]))[-1]
        assert isinstance(entry, CacheEntry) and entry.accepts_with([Destination()])
        entry.enqueue(TRANSIENT)
        if ident == "stored":
            store.put([entry], lambda done: None)
    row = SeenRow("cache", id_of("stored"), 1, 0)
    assert [change.row for change in written if isinstance(change, Delete)] == [row]


def message(body: bytes, **headers: object) -> Message:
    encoded = encode_properties(Properties(headers=headers))
    return make_message(MessageRoute("x", "k"), encoded, body, False, scan_properties(encoded, 0, len(encoded)))


def test_history_keeps_the_last_messages() -> None:
    history = MessageHistory(3)
    for number in range(5):
        history.enqueue(message(b"%d" % number))
        history.enqueue(message(b"secret", **{"x-recent-history-no-store": True}))
        history.enqueue(message(b"said", **{"x-recent-history-no-store": "true"})) if number == 4 else None
    assert [each.body() for each in history.messages()] == [b"3", b"4", b"said"]
    assert history.count() == 3


def test_history_is_bounded_by_bytes() -> None:
    history = MessageHistory(1000)
    body = bytes(HISTORY_BYTES_MAX // 8)
    for _ in range(20):
        history.enqueue(message(body))
    assert history.count() == 7 and history.size_bytes <= HISTORY_BYTES_MAX
    history.enqueue(message(bytes(HISTORY_BYTES_MAX + 1)))
    assert history.count() == 7
    history.enqueue(message(b"small"))
    assert history.count() == 8


def test_message_from_history_has_no_arrival_time() -> None:
    history = MessageHistory(3)
    original = message(b"body")
    original.arrived_ms = 77
    history.enqueue(original)
    (replayed,) = history.messages()
    assert (replayed.arrived_ms, replayed.body(), replayed.properties()) == (0, b"body", original.properties())
