"""The walk's readers of streams: what breaks their promises is seen."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from states_life import Life
from states_readers import SIZE_MAX, Readers
from states_search import Search
from states_workloads import WORKLOADS

from amqpd.broker.vhost.consumer_offsets import ConsumerOffsets
from amqpd.storage.metadata.store import StoredOffsetRow
from amqpd.storage.queue_log import Cursor, ReadResult
from amqpd.storage.retention import trim


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def walk(seeds: int = 3) -> None:
    (workload,) = [each for each in WORKLOADS if each.name == "streams and their readers"]
    for seed in range(seeds):
        Search(seed, set(), share=0.05, draws=1, lived_in=0.001).run(workload)


@pytest.mark.slow
def test_nothing_is_broken() -> None:
    walk()


def test_who_sees_what_is_not_safe_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def above(readers: Readers, cursor: Cursor, place: int) -> ReadResult:
        return cursor.read_if_cached(place, SIZE_MAX, lambda: None)

    monkeypatch.setattr(Readers, "fetch", above)
    with pytest.raises(AssertionError, match="is lost"):
        walk()


def test_what_is_stored_before_it_is_acked_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    put = ConsumerOffsets.put
    monkeypatch.setattr(ConsumerOffsets, "put", lambda self, queue, name, offset: put(self, queue, name, offset + 1))
    with pytest.raises(AssertionError, match="has not acked that far|and the log ends at"):
        walk()


def test_what_was_told_stored_and_is_not_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a failed commit it is said that it is done."""

    def fine(self: ConsumerOffsets, part: list[StoredOffsetRow], error: BaseException | None) -> None:
        for row in part:
            if error is not None:
                told[0].life.ledger.told[row.queue_id, row.name] = row.offset

    told: list[Readers] = []
    begin = Readers.__init__

    def begun(self: Readers, *arguments: object) -> None:
        begin(self, *arguments)  # type: ignore[arg-type]
        told[:] = [self]

    monkeypatch.setattr(ConsumerOffsets, "_written", fine)
    monkeypatch.setattr(Readers, "__init__", begun)
    with pytest.raises(AssertionError, match="was stored for"):
        walk(9)


def test_a_head_that_is_cut_too_far_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one message more than any policy allows."""
    maintain = Life.maintain

    def further(life: Life) -> None:
        maintain(life)
        live = life.live("s")
        if len(live) > 2:
            trim(life.stores["s"], live[1].offset)
            life.turn()
            life.flush()

    monkeypatch.setattr(Life, "maintain", further)
    with pytest.raises(AssertionError, match="is lost|has passed over"):
        walk()
