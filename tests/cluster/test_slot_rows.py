"""A slot's rows are written to Kafka, and the next owner reads the same rows back."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest
from fake_kafka import FakeKafka
from librt.strings import BytesWriter
from slot_of import META, VHOST, Take, queue, rows_and_places, until, wait_for_answers

from amqpd.cluster.row_table import RowTable
from amqpd.kafka.keyed_records import KeyedRecord, keyed_batch, keyed_records
from amqpd.storage.log.batch import close_batch
from amqpd.storage.metadata.rows import (
    BindingRow,
    Delete,
    DeleteBindings,
    ExchangeRow,
    Put,
    QueueRow,
    StoredOffsetRow,
)
from amqpd.storage.metadata.schema import TABLES
from amqpd.storage.metadata.store import MetadataError, WriteFailed


def rows_of(table: RowTable) -> set[object]:
    """Return the rows without orphans: bindings of missing queues and leftovers of deleted queues are removed
    at load.
    """
    queues = {row.name for row in table.rows(QueueRow)}
    rows = {row for each in TABLES for row in table.rows(each.row)} - {
        deleted.row for deleted in table.orphan_deletions()
    }
    return {row for row in rows if not isinstance(row, BindingRow) or row.destination in queues}


class TestRows:
    async def test_next_owner_has_all_answered_changes(self, take: Take) -> None:
        slot = await take()
        answers: list[BaseException | None] = []
        random_ = random.Random(3)
        submitted = 0
        for turn in range(60):
            number = random_.randrange(12)
            changes: list[Any] = [
                Put(queue(number)),
                Put(BindingRow("/", "amq.topic", f"q{number}", "queue", f"key {turn}")),
            ]
            match random_.randrange(5):
                case 0:
                    row = queue(number)._replace(state="deleting")
                    changes = [Put(row), DeleteBindings("/", row.name, "queue")]
                case 1:
                    changes = [Delete(queue(number))]
                case 2:
                    changes = [Put(ExchangeRow("/", f"x{number}", "topic"))]
            slot.rows.submit(changes, answers.append)
            submitted += 1
            if turn % 7 == 0:
                await asyncio.sleep(0.01)
        assert await wait_for_answers(answers, submitted) == [None] * submitted
        before, places = rows_and_places(slot), dict(slot.placement.places)
        assert slot.placed == places
        await slot.close()
        after = await take()
        assert rows_and_places(after) == before
        assert after.placement.places == places
        assert after.rows.table.foreign_count == 0

    async def test_foreign_records_and_batches_are_skipped_and_logged(
        self, fake: FakeKafka, take: Take, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A foreign record, and a batch with a valid checksum but no valid records."""
        slot = await take()
        await slot.rows.write([Put(ExchangeRow("/", "a", "topic"))])
        before = rows_and_places(slot)
        await slot.close()
        foreign = keyed_batch([KeyedRecord(b"k", b"v")], 0, 1, 99, 0, 0)
        garbage = close_batch(BytesWriter(), b"\xff" * 40, 0, 3, 0, 0, 1, 0, 99, 0, -1, [], 0)
        for batch in (foreign, garbage):
            fake.append(META, 1, batch.header + batch.records)
        assert rows_and_places(await take()) == before
        assert "amqpd.shop.meta 1: a batch cannot be read and is skipped" in caplog.text
        assert "amqpd.shop.meta 1: 2 records are not amqpd's and were skipped" in caplog.text

    async def test_slot_with_rows_of_a_later_version_is_not_taken(self, fake: FakeKafka, take: Take) -> None:
        batch = keyed_batch([KeyedRecord(b'["pets","cat"]', b"{}")], 0, 1, 99, 0, 0)
        fake.append(META, 1, batch.header + batch.records)
        with pytest.raises(MetadataError, match="table 'pets' is not known to this version of amqpd; start the later"):
            await take()

    async def test_submissions_at_once_share_batches(self, fake: FakeKafka, take: Take) -> None:
        """A thousand declarations need a few batches and are answered in order."""
        slot = await take(vhosts=(VHOST,))
        order: list[int] = []
        before = fake.topics[META][1].end, len(fake.topics[META][1].batches)
        for number in range(1000):
            row = ExchangeRow("/", f"x{number}", "topic")
            slot.rows.submit([Put(row)], lambda error, number=number: order.append(number))  # type: ignore[misc]
        await until(lambda: len(order) >= 1000)
        assert order == list(range(1000))
        assert fake.topics[META][1].end == before[0] + 1000
        assert len(fake.topics[META][1].batches) - before[1] < 20
        assert slot.waiting_count == 0

    async def test_invalid_submission_does_not_affect_others(self, take: Take) -> None:
        slot = await take()
        answers: list[tuple[str, BaseException | None]] = []
        for name, change in (
            ("a", Put(ExchangeRow("/", "a", "topic"))),
            ("wrong", Put(StoredOffsetRow("no queue", "c", 1, 0))),
            ("lone", Put(ExchangeRow("/", "\ud800", "topic"))),
            ("b", Put(ExchangeRow("/", "b", "topic"))),
        ):
            slot.rows.submit([change], lambda error, name=name: answers.append((name, error)))  # type: ignore[misc]
        await until(lambda: len(answers) >= 4)
        found = dict(answers)
        assert (found["a"], found["b"]) == (None, None)
        assert isinstance(found["wrong"], WriteFailed) and isinstance(found["lone"], WriteFailed)
        assert "there is no 'no queue' in queues" in str(found["wrong"])

    async def test_submission_larger_than_a_batch_is_refused(self, take: Take) -> None:
        """The refusal comes before any write. The deletion of a vhost may be larger."""
        slot = await take(bytes_max=30_000)
        end = slot.rows.partition.next_offset
        exchanges = [Put(ExchangeRow("/", f"x{number}", "topic")) for number in range(1000)]
        (error,) = await wait_for_answers(slot.submit(*exchanges))
        assert isinstance(error, WriteFailed)
        assert "1000 rows of" in str(error) and "cluster.max_message_bytes" in str(error)
        assert slot.rows.partition.next_offset == end
        for first in range(0, 1000, 100):
            assert await wait_for_answers(slot.submit(*exchanges[first : first + 100])) == [None]
        await slot.rows.write([Delete(VHOST)])
        await slot.close()
        assert rows_and_places(await take(bytes_max=30_000)) == set()

    async def test_submissions_are_grouped_up_to_the_batch_size(self, fake: FakeKafka, take: Take) -> None:
        """Small submissions before a large one; each fits into a batch alone."""
        slot = await take(bytes_max=30_000)
        answers: list[BaseException | None] = []
        for turn in range(20):
            for number in range(10):
                slot.rows.submit([Put(ExchangeRow("/", f"small{turn} {number}", "topic"))], answers.append)
            slot.rows.submit(
                [Put(ExchangeRow("/", f"large{turn} {number}", "topic")) for number in range(150)], answers.append
            )
        assert await wait_for_answers(answers, 220) == [None] * 220
        assert max(map(len, fake.topics[META][1].batches)) <= 30_000

    async def test_crash_at_any_batch_leaves_whole_submissions(self, fake: FakeKafka, take: Take) -> None:
        """The contents of `meta` up to any batch equal the table after one of the submissions."""
        slot = await take(bytes_max=3_000)
        await slot.placement._grow(
            slot.placement._topic(VHOST.id), 150
        )  # otherwise submissions that wait for a partition would be overtaken
        random_ = random.Random(11)
        model = RowTable()
        seen = [rows_of(model)]
        waiting: list[BaseException | None] = []
        for turn in range(150):
            number = random_.randrange(6)
            changes: list[Any] = [
                Put(queue(number)),
                *(Put(BindingRow("/", "x", f"q{number}", "queue", f"{turn} {each}")) for each in range(number)),
            ]
            match random_.randrange(6):
                case 0:
                    changes = [Delete(queue(number)), DeleteBindings("/", f"q{number}", "queue")]
                case 1:
                    offset = StoredOffsetRow(queue(number).id, "c", turn, 0)
                    changes = [Put(offset), Put(ExchangeRow("/", "x", "topic"))]
            slot.rows.submit(changes, waiting.append)
            with suppress(WriteFailed):
                model.apply(changes)
            seen.append(rows_of(model))
            if turn % 5 == 0:
                await asyncio.sleep(0.002)
        await wait_for_answers(waiting, 150)
        read_back = RowTable()
        at = 0
        for batch in fake.topics[META][1].batches:
            for part in keyed_records(batch):
                for record in part:
                    read_back.read(record.key, record.value)
            at += next(index for index, rows in enumerate(seen[at:]) if rows == rows_of(read_back))
        assert at == len(seen) - 1 or seen[at] == seen[-1]

    async def test_dependent_deletions_precede_later_submissions(self, fake: FakeKafka, take: Take) -> None:
        """A queue with more bindings than fit into a batch is deleted and declared again in one group. After no batch
        does the new queue have old bindings.
        """
        slot = await take(bytes_max=3_000)
        await slot.rows.write([Put(queue(0))])
        for number in range(40):
            await slot.rows.write([Put(BindingRow("/", "x", "q0", "queue", f"old {number}"))])
        new = queue(0, id="f" * 32)
        slot.logs.may_write = lambda _: False  # type: ignore[method-assign]
        answers = slot.submit(Put(ExchangeRow("/", "x", "topic")))
        deleted = slot.submit(Delete(queue(0)), DeleteBindings("/", "q0", "queue"))
        again = slot.submit(Put(new), Put(BindingRow("/", "x", "q0", "queue", "new")))
        slot.logs.may_write = lambda _: True  # type: ignore[method-assign]
        slot.rows.on_stored()
        assert (
            await wait_for_answers(answers) + await wait_for_answers(deleted) + await wait_for_answers(again)
            == [None] * 3
        )
        table = RowTable()
        for batch in fake.topics[META][1].batches:
            for part in keyed_records(batch):
                for record in part:
                    table.read(record.key, record.value)
            keys = {row.routing_key for row in table.rows(BindingRow)}
            assert table.row(new) is None or keys <= {"new"}
        assert table.row(new) == new and keys == {"new"}

    async def test_ten_thousand_rows_do_not_block_the_event_loop(self, take: Take) -> None:
        slot = await take()
        turns = 0

        async def ticking() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                if slot.waiting_count:
                    turns += 1

        ticks = asyncio.create_task(ticking())
        await slot.rows.write([Put(ExchangeRow("/", f"x{number}", "topic")) for number in range(10_000)])
        ticks.cancel()
        assert turns > 10

    async def test_fenced_owner_gets_an_error(self, take: Take) -> None:
        slot = await take()
        await slot.rows.write([Put(ExchangeRow("/", "a", "topic"))])
        after = await take()
        answers = slot.submit(Put(ExchangeRow("/", "b", "topic")))
        (error,) = await wait_for_answers(answers)
        assert isinstance(error, WriteFailed) and "INVALID_PRODUCER_EPOCH" in str(error)
        (error,) = await wait_for_answers(slot.submit(Put(ExchangeRow("/", "c", "topic"))))
        assert isinstance(error, WriteFailed)
        assert [row.name for row in after.rows.table.rows(ExchangeRow)] == ["a"]
        with pytest.raises(WriteFailed):
            await slot.rows.write([Put(ExchangeRow("/", "c", "topic"))])

    async def test_failing_the_slot_fails_a_submission_in_progress(self, take: Take) -> None:
        slot = await take()
        answers = slot.submit(*(Put(ExchangeRow("/", f"x{number}", "topic")) for number in range(10_000)))
        waiting = slot.submit(Put(ExchangeRow("/", "b", "topic")))
        slot.rows.fail("the slot was given up")
        assert answers + waiting == [], (
            "a vhost that ends must close its connections (320) before it fails submissions (506)"
        )
        await asyncio.sleep(0)
        assert [str(error) for error in answers + waiting] == ["the slot was given up"] * 2
        assert len(slot.rows.table) == 0

    async def test_submissions_survive_transient_failures(self, fake: FakeKafka, take: Take) -> None:
        """Connections break and leaders move. Each submission is answered and stored once."""
        slot = await take()
        random_ = random.Random(5)
        answers: list[BaseException | None] = []
        for number in range(100):
            slot.rows.submit([Put(ExchangeRow("/", f"x{number}", "topic"))], answers.append)
            if number % 10 == 0:
                match random_.randrange(3):
                    case 0:
                        fake.drop(random_.choice((1, 2)))
                    case 1:
                        fake.lead(META, 1, random_.choice((1, 2)))
                    case _:
                        fake.fail(META, 1, 6)
            await asyncio.sleep(0.003)
        assert await wait_for_answers(answers, 100) == [None] * 100
        await slot.close()
        after = await take()
        assert len(list(after.rows.table.rows(ExchangeRow))) == 100
