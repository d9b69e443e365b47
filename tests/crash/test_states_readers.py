"""The crash search over stream readers: each injected defect is found."""

from __future__ import annotations

import pytest
from states_life import Life
from states_readers import SIZE_MAX, Readers
from states_search import Search
from states_workloads import WORKLOADS

from amqpd.broker.vhost.consumer_offsets import ConsumerOffsets
from amqpd.storage.metadata.rows import StoredOffsetRow
from amqpd.storage.queue_log import Cursor, ReadResult
from amqpd.storage.retention import trim

pytestmark = pytest.mark.usefixtures("quiet")


def walk(seeds: int = 3) -> None:
    (workload,) = [each for each in WORKLOADS if each.name == "streams and their readers"]
    for seed in range(seeds):
        Search(seed, set(), share=0.05, draws=1, lived_in=0.001).run(workload)


@pytest.mark.slow
def test_crash_states_of_stream_readers_have_no_violation() -> None:
    walk()


def test_walk_finds_read_above_high_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch_unsafe(readers: Readers, cursor: Cursor, position: int) -> ReadResult:
        return cursor.read_if_cached(position, SIZE_MAX, lambda: None)

    monkeypatch.setattr(Readers, "fetch", fetch_unsafe)
    with pytest.raises(AssertionError, match="is lost"):
        walk()


def test_walk_finds_offset_stored_before_ack(monkeypatch: pytest.MonkeyPatch) -> None:
    put = ConsumerOffsets.put
    monkeypatch.setattr(ConsumerOffsets, "put", lambda self, queue, name, offset: put(self, queue, name, offset + 1))
    with pytest.raises(AssertionError, match="has not acked that far|and the log ends at"):
        walk()


def test_walk_finds_offset_reported_stored_after_failed_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed commit is reported as done."""

    def report_success(self: ConsumerOffsets, part: list[StoredOffsetRow], error: BaseException | None) -> None:
        for row in part:
            if error is not None:
                current[0].life.ledger.reported[row.queue_id, row.name] = row.offset

    current: list[Readers] = []
    init = Readers.__init__

    def init_and_note(self: Readers, *arguments: object) -> None:
        init(self, *arguments)  # type: ignore[arg-type]
        current[:] = [self]

    monkeypatch.setattr(ConsumerOffsets, "_written", report_success)
    monkeypatch.setattr(Readers, "__init__", init_and_note)
    with pytest.raises(AssertionError, match="was stored for"):
        walk(9)


@pytest.mark.slow
def test_walk_finds_retention_that_deletes_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention deletes one message more than any policy allows."""
    maintain = Life.maintain

    def maintain_too_far(life: Life) -> None:
        maintain(life)
        live = life.live("s")
        if len(live) > 2:
            trim(life.stores["s"], live[1].offset)
            life.turn()
            life.flush()

    monkeypatch.setattr(Life, "maintain", maintain_too_far)
    with pytest.raises(AssertionError, match="is lost|has passed over"):
        walk()
