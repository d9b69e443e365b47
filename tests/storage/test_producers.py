"""Producer state of a log: batches, the table and its snapshot file, kills and power cuts at any call."""

from __future__ import annotations

import errno
import os
import struct
import warnings
from typing import Any

import pytest
from foreign_batches import check_batches
from google_crc32c import value
from simulated_filesystem import SimulatedFileSystem

from amqpd.storage.log.appender import BadBatch
from amqpd.storage.log.batch import NO_PRODUCER, BatchHeader
from amqpd.storage.log.producer_state import PRODUCERS_MAX, SILENT_MS_MAX, UNSAFE_MAX, Producer, Producers
from amqpd.storage.log.record import RecordRoute

ROUTE = RecordRoute(b"", b"q")


def send(harness: Any, sequence: int, producer: int = 5, epoch: int = 0, size: int = 0) -> bool:
    """Append as the broker does. Return False for a duplicate."""
    store = harness.store
    now_ms = harness.clock.time_ms()
    last = store.producers().find(producer, now_ms)
    if last is not None and last.contains(epoch, sequence):
        return False
    store.set_producer(producer, epoch, sequence)
    try:
        offset = harness.append(b"%d/%d/%d" % (producer, epoch, sequence) + b"." * size)[0]
    finally:
        store.set_producer(NO_PRODUCER, 0, -1)
    store.producers().record(Producer(producer, epoch, sequence, offset, now_ms), store.high_watermark)
    return True


def batches(harness: Any) -> list[tuple[int, int, int, int]]:
    """(producer id, epoch, base sequence, record count) of each batch."""
    data = bytes(harness.log())
    found = []
    position = 0
    while position < len(data):
        header = BatchHeader(data, position)
        sequence = header.base_sequence if header.producer_id >= 0 else -1
        found.append((header.producer_id, header.producer_epoch, sequence, header.count))
        position += header.size
    return found


def snapshots(harness: Any) -> list[str]:
    return [name for name in harness.filesystem.listdir(harness.directory) if name.endswith(".snapshot")]


def test_batch_has_sequences_of_one_producer_without_a_gap(harness: Any) -> None:
    harness.create_log()
    for sequence in (0, 1, 2, 4):
        send(harness, sequence)
    send(harness, 5, epoch=1)
    send(harness, 0, producer=2**63 - 1, epoch=32767)
    send(harness, 2**31 - 1, producer=2**63 - 1, epoch=32767)
    harness.append(b"plain", b"plain")
    send(harness, 6, epoch=1)
    harness.end_turn()
    harness.append(b"plain")
    harness.end_turn()
    highest = 2**63 - 1
    assert batches(harness) == [
        (5, 0, 0, 3),
        (5, 0, 4, 1),
        (5, 1, 5, 1),
        (highest, 32767, 0, 1),
        (highest, 32767, 2**31 - 1, 1),
        (-1, 0xFFFF, -1, 2),
        (5, 1, 6, 1),
        (-1, 0xFFFF, -1, 1),
    ]


def test_full_batches_continue_the_sequence(harness: Any) -> None:
    harness.create_log()
    for sequence in range(150):
        send(harness, sequence)
    harness.end_turn()
    assert batches(harness) == [(5, 0, 0, 64), (5, 0, 64, 64), (5, 0, 128, 22)]
    large = [b"x" * 100_000] * 20
    harness.store.set_producer(5, 0, 150)
    harness.store.append_large(ROUTE, b"\x00\x00", large, 2_000_000, True)
    harness.store.set_producer(NO_PRODUCER, 0, -1)
    harness.append(b"plain")
    harness.end_turn()
    assert batches(harness)[3:] == [(5, 0, 150, 1), (-1, 0xFFFF, -1, 1)]


def test_transaction_leaves_no_producer_state(harness: Any) -> None:
    harness.create_log()
    send(harness, 0)
    harness.store.begin_transaction()
    harness.append(*[b"part"] * 65)
    harness.store.end_transaction()
    harness.append(b"plain")
    harness.end_turn()
    assert [each[0] for each in batches(harness)] == [5, 1, 1, 1, -1]
    store = harness.restart()
    assert store.producers().find(1, harness.clock.time_ms()) is None


def test_producers_are_known_after_a_kill_and_a_clean_stop(harness: Any) -> None:
    harness.create_log()
    for sequence in range(10):
        assert send(harness, sequence)
    harness.end_turn()
    harness.restart()
    assert not send(harness, 9)
    assert send(harness, 10)
    harness.end_turn()
    assert len(snapshots(harness)) == 1  # after the kill
    harness.storage.close(clean=True)
    harness.run_callbacks()
    assert snapshots(harness) == ["00000000000000000011.snapshot"]
    harness.restart(harness.filesystem)
    assert not send(harness, 10)
    assert send(harness, 11)


def test_snapshot_has_kafkas_format(harness: Any) -> None:
    producers = Producers()
    producers.record(Producer(7, 3, 99, 1234, 1_700_000_000_000), 2000)
    data = producers.encode(2000)
    version, crc, count = struct.unpack_from(">hIi", data)
    assert (version, count, crc) == (1, 1, value(data[6:]))
    assert struct.unpack_from(">qhiqiqiq", data, 10) == (7, 3, 99, 1234, 0, 1_700_000_000_000, -1, -1)
    decoded = Producers()
    assert decoded.decode(data)
    assert decoded.encode(2000) == data
    for position in range(len(data)):
        bad = bytearray(data)
        bad[position] ^= 0x10
        assert not Producers().decode(bytes(bad))
        assert not Producers().decode(data[:position])


def test_producers_of_a_removed_segment_are_known(make_harness: Any) -> None:
    harness = make_harness(segment_size_bytes=4096)
    harness.create_log()
    for sequence in range(40):
        send(harness, sequence, size=500)
        harness.end_turn()
    harness.store.ack_range(0, 39)
    harness.end_turn()
    harness.storage.commits.flush()
    harness.run_callbacks()
    harness.end_turn()
    assert not harness.filesystem.exists(f"{harness.directory}/00000000000000000000.log")
    for image in (harness.filesystem.killed(), harness.filesystem.crashed(1)):
        harness.restart(image)
        assert not send(harness, 39)
        assert not send(harness, 0)
        assert send(harness, 40)


def test_producers_are_known_although_their_snapshot_failed_at_first(make_harness: Any) -> None:
    """A segment is not removed before the snapshot has its producers."""
    harness = make_harness(segment_size_bytes=4096)
    harness.create_log()
    harness.filesystem.fault = lambda name, path: (
        OSError(errno.EMFILE, "no descriptor") if name == "open" and ".snapshot" in path else None
    )
    send(harness, 0, producer=6)
    for sequence in range(40):
        send(harness, sequence, size=500)
        harness.end_turn()
    harness.filesystem.fault = None
    first = harness.store.log.segments[0]
    harness.store.ack_range(0, first.end - 1)
    for _ in range(3):
        harness.append(b"plain")
        harness.end_turn()
        harness.storage.commits.flush()
        harness.run_callbacks()
    assert not harness.filesystem.exists(f"{first.prefix}.log")
    harness.restart(harness.filesystem.killed())
    assert not send(harness, 0, producer=6)
    assert send(harness, 1, producer=6)


def test_damaged_snapshot_is_rebuilt_from_the_log(make_harness: Any) -> None:
    harness = make_harness(segment_size_bytes=4096)
    harness.create_log()
    for sequence in range(40):
        send(harness, sequence, producer=sequence % 2, size=500)
        harness.end_turn()
    (name,) = snapshots(harness)
    harness.filesystem.replace_file(f"{harness.directory}/{name}", b"damaged", sync=True)
    harness.restart()
    assert not send(harness, 38, producer=0)
    assert not send(harness, 39, producer=1)
    harness.end_turn()
    assert [each for each in snapshots(harness) if each != name]


def test_hole_left_by_a_power_cut_ends_the_log(make_harness: Any) -> None:
    """A turn writes to two segments and a power cut loses its part of the first: those sequences can be sent again."""
    harness = make_harness(segment_size_bytes=2000)
    harness.create_log()
    send(harness, 0, size=500)
    send(harness, 0, producer=6, size=500)
    harness.end_turn()
    segment = harness.store.log.segments[-1]
    whole = harness.filesystem.size(segment.prefix + ".log")
    for sequence in range(1, 5):
        send(harness, sequence, size=500)
        harness.store.write()
    assert len(harness.store.log.segments) > 1
    filesystem = harness.filesystem.killed()
    fd = filesystem.open(segment.prefix + ".log", os.O_RDWR)
    filesystem.truncate(fd, whole)
    filesystem.close(fd)
    harness.restart(filesystem, boot_id="2" * 32)
    assert not send(harness, 0), "the safe record is a duplicate"
    assert not send(harness, 0, producer=6)
    assert [send(harness, sequence) for sequence in range(1, 5)] == [True] * 4
    harness.end_turn()
    bodies = [bytes(record.body).rstrip(b".") for record in harness.store.cursor.read(0, 1 << 30).records]
    assert bodies == [b"5/0/0", b"6/0/0", *[b"5/0/%d" % sequence for sequence in range(1, 5)]]


def test_hole_without_sequences_behind_it_keeps_the_later_records(make_harness: Any) -> None:
    harness = make_harness(segment_size_bytes=2000)
    harness.create_log()
    harness.append(b"." * 500)
    harness.end_turn()
    segment = harness.store.log.segments[-1]
    whole = harness.filesystem.size(segment.prefix + ".log")
    for number in range(6):
        harness.append(b"%d" % number + b"." * 500)
        harness.store.write()
    filesystem = harness.filesystem.killed()
    fd = filesystem.open(segment.prefix + ".log", os.O_RDWR)
    filesystem.truncate(fd, whole)
    filesystem.close(fd)
    harness.restart(filesystem, boot_id="2" * 32)
    bodies = [bytes(record.body)[:1] for record in harness.store.cursor.read(0, 1 << 30).records]
    assert b"0" not in bodies
    assert bodies[0] == b"." and bodies[-1] == b"5"


def test_recovery_point_moves_behind_a_snapshot(make_harness: Any) -> None:
    """After a second kill at once, recovery does not read again what the first one has checked."""
    harness = make_harness(segment_size_bytes=2000)
    harness.create_log()
    for sequence in range(3):
        send(harness, sequence, size=900)
        harness.store.write()
    send(harness, 0, producer=6, size=900)
    harness.store.write()
    harness.restart()
    harness.restart()
    assert [send(harness, sequence) for sequence in range(3)] == [False] * 3
    assert not send(harness, 0, producer=6)


def test_unwritten_record_may_be_sent_again(harness: Any) -> None:
    harness.create_log()
    send(harness, 0)
    harness.end_turn()
    send(harness, 1)
    send(harness, 0, producer=6)

    def full(name: str, path: str) -> OSError | None:
        return OSError(28, "full") if name in ("writev", "write") and path.endswith(".log") else None

    harness.filesystem.fault = full
    harness.end_turn()
    harness.filesystem.fault = None
    assert harness.store.take_failed_ranges() == [(1, 2)]
    assert not send(harness, 0)
    assert send(harness, 1)
    assert send(harness, 0, producer=6)
    harness.end_turn()
    assert harness.bodies() == [b"5/0/0", b"5/0/1", b"6/0/0"]


def test_silent_producers_expire() -> None:
    producers = Producers()
    for each in range(PRODUCERS_MAX + 1):
        producers.record(Producer(each, 0, 0, each, 1000), 1 << 40)
        producers.record(Producer(0, 0, each, each, 1000), 1 << 40)
    assert len(producers) == PRODUCERS_MAX
    assert producers.find(1, 1000) is None
    assert producers.find(0, 1000) is not None
    assert producers.find(2, 1000 + SILENT_MS_MAX) is not None
    assert producers.find(2, 1001 + SILENT_MS_MAX) is None


def test_silent_producers_leave_the_memory() -> None:
    """Kafka's clients take a new id at each start, so each log would have the last PRODUCERS_MAX starts for good."""
    producers = Producers()
    for hour in range(1000):
        now_ms = hour * 3_600_000
        assert producers.find(hour, now_ms) is None
        producers.record(Producer(hour, 0, 0, hour, now_ms), hour)
    assert [each.producer_id for each in producers.all()] == list(range(975, 1000))
    assert len(producers.encode(1000)) < 2000


def publish_and_ack(harness: Any, confirmed: dict[int, int]) -> None:
    """Two producers fill segments that are removed. `confirmed` gets the last confirmed sequence of each."""
    for turn in range(30):
        for producer in (1, 2):
            send(harness, 2 * turn, producer=producer, size=300)
            send(harness, 2 * turn + 1, producer=producer, size=300)
        harness.append(b"plain")
        if turn % 7 == 6:
            harness.store.ack_range(0, harness.store.next_offset - 8)
        harness.end_turn()
        for producer in (1, 2):
            confirmed[producer] = 2 * turn + 1
        harness.storage.commits.flush()
        harness.run_callbacks()


def test_power_cut_at_any_call(make_harness: Any) -> None:
    """Confirmed and stored records are duplicates afterwards; all others can be sent."""
    at = 0
    ended = True
    checked = 0
    while ended and at < 3000:
        harness = make_harness(segment_size_bytes=4096)
        harness.create_log()
        calls_left = [at]

        def fault(name: str, path: str, calls_left: list[int] = calls_left) -> OSError | None:
            if calls_left[0] == 0:
                raise KeyboardInterrupt  # the machine stops here
            calls_left[0] -= 1
            return None

        harness.filesystem.fault = fault
        confirmed = {1: -1, 2: -1}
        try:
            publish_and_ack(harness, confirmed)
            ended = False
        except KeyboardInterrupt:
            pass
        harness.filesystem.fault = None
        images: list[SimulatedFileSystem] = [harness.filesystem.killed(), harness.filesystem.crashed(at)]
        for image in images:
            harness.restart(image)
            stored = {tuple(map(int, body.rstrip(b".").split(b"/"))) for body in harness.bodies() if body != b"plain"}
            for producer in (1, 2):
                last = max([confirmed[producer], *(each[2] for each in stored if each[0] == producer)])
                known = harness.store.producers().find(producer, harness.clock.time_ms())
                sequence = known.sequence if known is not None else -1
                assert sequence >= last, (at, producer, confirmed, stored)
                # A duplicate was in the log (all of which a kill leaves) or confirmed.
                if sequence > confirmed[producer]:
                    assert (producer, 0, sequence) in stored or image is images[0], (at, producer, sequence)
                assert send(harness, sequence + 1, producer=producer)
                checked += 1
            harness.end_turn()
        at += 3
    assert not ended
    assert checked > 400


def test_failure_of_more_records_than_are_kept_one_by_one() -> None:
    """None of the records is safe, and one of the three producers is new. Failed ones may be sent again, and none
    counts as stored.
    """
    for first in (30, 5_000, UNSAFE_MAX, UNSAFE_MAX + 20_000):
        producers = Producers()
        last = {}
        for offset in range(UNSAFE_MAX + 30_000):
            number = 3 if offset % 1000 == 999 else offset % 2
            producers.record(Producer(number, 0, offset, offset, 1), min(offset, 30))
            if offset < first:
                last[number] = offset
        decoded = Producers()
        assert decoded.decode(producers.encode(first))
        producers.undo_from(first)
        for each in (producers, decoded):
            for number in (0, 1, 3):
                found = each.find(number, 1)
                known = -1 if found is None else found.sequence
                assert known <= last.get(number, -1), (first, number)
                if first > UNSAFE_MAX:
                    assert known == last[number], "each record is known"
        producers.record(Producer(0, 0, first + 7, first, 1), first)
        producers.record(Producer(1, 0, first + 8, first + 1, 1), first + 2)
        producers.undo_from(first + 2)
        assert producers.find(0, 1).sequence == first + 7


def foreign(sequence: int, count: int = 3, producer: int = 9, size: int = 0) -> bytes:
    """A batch of one of Kafka's clients, with times of long ago."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka.record.default_records import DefaultRecordBatchBuilder
    builder = DefaultRecordBatchBuilder(2, 0, 0, producer, 2, sequence, 1 << 20)
    for number in range(count):
        builder.append(number, timestamp=1000, key=None, value=b"." * size, headers=[])
    return bytes(builder.build())


def known_batches(harness: Any, producer: int = 9) -> list[tuple[int, int]]:
    """(first sequence, offset of the last message) of each batch of three that is known."""
    found = harness.store.producers().find(producer, harness.clock.time_ms())
    if found is None:
        return []
    batches = [(first, found.find_batch(2, first, first + 2)) for first in range(found.sequence)]
    return [each for each in batches if each[1] >= 0]


FIVE = [(3 * number, 3 * number + 2) for number in range(35, 40)]


def test_last_five_batches_of_a_kafka_producer_are_known(make_harness: Any) -> None:
    """After kills, power cuts and stops; with a snapshot in the middle of the five, too."""
    for turns in range(40, 46):
        harness = make_harness(segment_size_bytes=4096)
        harness.create_log()
        for number in range(40):
            harness.store.appender.append_checked(check_batches(foreign(3 * number, size=100)))
            harness.end_turn()
        for _ in range(turns - 40):
            harness.append(b"." * 1000)
            harness.end_turn()
        assert known_batches(harness) == FIVE
        assert len(snapshots(harness)) == 1
        for image in (harness.filesystem.killed(), harness.filesystem.crashed(1)):
            harness.restart(image)
            assert known_batches(harness) == FIVE
            harness.end_turn()
        harness.storage.close(clean=True)
        harness.run_callbacks()
        harness.restart(harness.filesystem)
        assert known_batches(harness) == FIVE
        harness.store.appender.append_checked(check_batches(foreign(120)))
        assert known_batches(harness) == [*FIVE[1:], (120, harness.store.next_offset - 1)]


def test_batches_are_known_although_an_older_segment_is_scanned_again(make_harness: Any) -> None:
    """A power cut may leave bad entries in its `.settled`. The snapshot has batches that the scan does not see."""
    for count in range(40, 44):
        harness = make_harness(segment_size_bytes=4096)
        harness.create_log()
        for number in range(count):
            harness.store.appender.append_checked(check_batches(foreign(3 * number, size=400)))
            harness.end_turn()
        expected = [(3 * number, 3 * number + 2) for number in range(count - 5, count)]
        image = harness.filesystem.killed()
        settled = min(name for name in image.listdir(harness.directory) if name.endswith(".settled"))
        image.unlink(f"{harness.directory}/{settled}")
        harness.restart(image)
        assert known_batches(harness) == expected


def test_unwritten_batch_is_not_known(harness: Any) -> None:
    harness.create_log()
    harness.store.appender.append_checked(check_batches(foreign(0) + foreign(3)))
    harness.end_turn()
    harness.store.appender.append_checked(check_batches(foreign(6)))
    assert known_batches(harness) == [(0, 2), (3, 5), (6, 8)]
    harness.store.on_not_written(6, 8)
    assert known_batches(harness) == [(0, 2), (3, 5)]


def test_batch_sequences_wrap(harness: Any) -> None:
    harness.create_log()
    harness.store.appender.append_checked(check_batches(foreign(2**31 - 2)))
    for _ in range(2):
        known = harness.store.producers().find(9, harness.clock.time_ms())
        assert (known.sequence, known.find_batch(2, 2**31 - 2, 0)) == (0, 2)
        harness.end_turn()
        harness.storage.close(clean=True)
        harness.run_callbacks()
        harness.restart(harness.filesystem)


def test_batch_with_producer_and_no_sequence_is_refused(harness: Any) -> None:
    store = harness.create_log()
    with pytest.raises(BadBatch, match="no valid epoch and sequence"):
        store.appender.append_checked(check_batches(foreign(-1)))
