"""Who has numbered what is in a log: batches, the table and its file, kills and cuts at calls of the file system."""

from __future__ import annotations

import os
import struct
import warnings
from typing import Any

import pytest
from google_crc32c import value
from simulated_filesystem import SimulatedFileSystem

from amqpd.storage.log.appender import BadBatch
from amqpd.storage.log.batch import NO_PRODUCER, BatchHeader
from amqpd.storage.log.producer_state import PRODUCERS_MAX, SILENT_MS_MAX, UNSAFE_MAX, Producer, Producers
from amqpd.storage.log.record import RecordRoute

ROUTE = RecordRoute(b"", b"q")


def send(house: Any, sequence: int, producer: int = 5, epoch: int = 0, size: int = 0) -> bool:
    """As the broker does it: False for a copy."""
    store = house.store
    now_ms = house.clock.time_ms()
    last = store.producers().find(producer, now_ms)
    if last is not None and last.contains(epoch, sequence):
        return False
    store.set_producer(producer, epoch, sequence)
    try:
        offset = house.append(b"%d/%d/%d" % (producer, epoch, sequence) + b"." * size)[0]
    finally:
        store.set_producer(NO_PRODUCER, 0, -1)
    store.producers().record(Producer(producer, epoch, sequence, offset, now_ms), store.high_watermark)
    return True


def batches(house: Any) -> list[tuple[int, int, int, int]]:
    """(producer id, epoch, base sequence, records) of each."""
    data = bytes(house.log())
    found = []
    position = 0
    while position < len(data):
        header = BatchHeader(data, position)
        sequence = header.base_sequence if header.producer_id >= 0 else -1
        found.append((header.producer_id, header.producer_epoch, sequence, header.count))
        position += header.size
    return found


def snapshots(house: Any) -> list[str]:
    return [name for name in house.filesystem.listdir(house.directory) if name.endswith(".snapshot")]


def test_a_batch_has_one_producers_sequences_without_a_gap(house: Any) -> None:
    house.begin()
    for sequence in (0, 1, 2, 4):
        send(house, sequence)
    send(house, 5, epoch=1)
    send(house, 0, producer=2**63 - 1, epoch=32767)
    send(house, 2**31 - 1, producer=2**63 - 1, epoch=32767)
    house.append(b"plain", b"plain")
    send(house, 6, epoch=1)
    house.turn()
    house.append(b"plain")
    house.turn()
    highest = 2**63 - 1
    assert batches(house) == [
        (5, 0, 0, 3),
        (5, 0, 4, 1),
        (5, 1, 5, 1),
        (highest, 32767, 0, 1),
        (highest, 32767, 2**31 - 1, 1),
        (-1, 0xFFFF, -1, 2),
        (5, 1, 6, 1),
        (-1, 0xFFFF, -1, 1),
    ]


def test_full_batches_go_on_in_the_sequence(house: Any) -> None:
    house.begin()
    for sequence in range(150):
        send(house, sequence)
    house.turn()
    assert batches(house) == [(5, 0, 0, 64), (5, 0, 64, 64), (5, 0, 128, 22)]
    large = [b"x" * 100_000] * 20
    house.store.set_producer(5, 0, 150)
    house.store.append_large(ROUTE, b"\x00\x00", large, 2_000_000, True)
    house.store.set_producer(NO_PRODUCER, 0, -1)
    house.append(b"plain")
    house.turn()
    assert batches(house)[3:] == [(5, 0, 150, 1), (-1, 0xFFFF, -1, 1)]


def test_a_transaction_has_no_producer(house: Any) -> None:
    house.begin()
    send(house, 0)
    house.store.begin_transaction()
    house.append(*[b"part"] * 65)
    house.store.end_transaction()
    house.append(b"plain")
    house.turn()
    assert [each[0] for each in batches(house)] == [5, 1, 1, 1, -1]
    store = house.again()
    assert store.producers().find(1, house.clock.time_ms()) is None


def test_known_after_a_kill_and_after_a_stop(house: Any) -> None:
    house.begin()
    for sequence in range(10):
        assert send(house, sequence)
    house.turn()
    house.again()
    assert not send(house, 9)
    assert send(house, 10)
    house.turn()
    assert len(snapshots(house)) == 1  # after the kill
    house.storage.close(clean=True)
    house.loop()
    assert snapshots(house) == ["00000000000000000011.snapshot"]
    house.again(house.filesystem)
    assert not send(house, 10)
    assert send(house, 11)


def test_kafkas_snapshot(house: Any) -> None:
    producers = Producers()
    producers.record(Producer(7, 3, 99, 1234, 1_700_000_000_000), 2000)
    data = producers.encode(2000)
    version, crc, count = struct.unpack_from(">hIi", data)
    assert (version, count, crc) == (1, 1, value(data[6:]))
    assert struct.unpack_from(">qhiqiqiq", data, 10) == (7, 3, 99, 1234, 0, 1_700_000_000_000, -1, -1)
    again = Producers()
    assert again.decode(data)
    assert again.encode(2000) == data
    for position in range(len(data)):
        bad = bytearray(data)
        bad[position] ^= 0x10
        assert not Producers().decode(bytes(bad))
        assert not Producers().decode(data[:position])


def foreign(sequence: int, count: int = 3, producer: int = 9, size: int = 0) -> bytes:
    """A batch of one of Kafka's clients, with times of long ago."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka.record.default_records import DefaultRecordBatchBuilder
    builder = DefaultRecordBatchBuilder(2, 0, 0, producer, 2, sequence, 1 << 20)
    for number in range(count):
        builder.append(number, timestamp=1000, key=None, value=b"." * size, headers=[])
    return bytes(builder.build())


def known_batches(house: Any, producer: int = 9) -> list[tuple[int, int]]:
    """(first sequence, offset of the last message) of each batch of three that is known."""
    found = house.store.producers().find(producer, house.clock.time_ms())
    if found is None:
        return []
    batches = [(first, found.find_batch(2, first, first + 2)) for first in range(found.sequence)]
    return [each for each in batches if each[1] >= 0]


FIVE = [(3 * number, 3 * number + 2) for number in range(35, 40)]


def test_five_batches_of_kafkas_producers_are_known(make_house: Any) -> None:
    """After kills, power cuts and stops; with a snapshot in the middle of the five, too."""
    for turns in range(40, 46):
        house = make_house(segment_size_bytes=4096)
        house.begin()
        for number in range(40):
            house.store.appender.append_batches(foreign(3 * number, size=100))
            house.turn()
        for _ in range(turns - 40):
            house.append(b"." * 1000)
            house.turn()
        assert known_batches(house) == FIVE
        assert len(snapshots(house)) == 1
        for image in (house.filesystem.killed(), house.filesystem.crashed(1)):
            house.again(image)
            assert known_batches(house) == FIVE
            house.turn()
        house.storage.close(clean=True)
        house.loop()
        house.again(house.filesystem)
        assert known_batches(house) == FIVE
        house.store.appender.append_batches(foreign(120))
        assert known_batches(house) == [*FIVE[1:], (120, house.store.next_offset - 1)]


def test_a_batch_that_was_not_written_is_not_known(house: Any) -> None:
    house.begin()
    house.store.appender.append_batches(foreign(0) + foreign(3))
    house.turn()
    house.store.appender.append_batches(foreign(6))
    assert known_batches(house) == [(0, 2), (3, 5), (6, 8)]
    house.store.on_not_written(6, 8)
    assert known_batches(house) == [(0, 2), (3, 5)]


def test_sequences_of_batches_wrap(house: Any) -> None:
    house.begin()
    house.store.appender.append_batches(foreign(2**31 - 2))
    for _ in range(2):
        known = house.store.producers().find(9, house.clock.time_ms())
        assert (known.sequence, known.find_batch(2, 2**31 - 2, 0)) == (0, 2)
        house.turn()
        house.storage.close(clean=True)
        house.loop()
        house.again(house.filesystem)


def test_a_batch_with_a_producer_and_no_sequence_is_refused(house: Any) -> None:
    store = house.begin()
    with pytest.raises(BadBatch, match="no valid epoch and sequence"):
        store.appender.append_batches(foreign(-1))


def test_a_segment_that_went_is_remembered(make_house: Any) -> None:
    house = make_house(segment_size_bytes=4096)
    house.begin()
    for sequence in range(40):
        send(house, sequence, size=500)
        house.turn()
    house.store.ack_range(0, 39)
    house.turn()
    house.storage.commits.flush()
    house.loop()
    house.turn()
    assert not house.filesystem.exists(f"{house.directory}/00000000000000000000.log")
    for image in (house.filesystem.killed(), house.filesystem.crashed(1)):
        house.again(image)
        assert not send(house, 39)
        assert not send(house, 0)
        assert send(house, 40)


def test_a_damaged_snapshot_has_the_log_read(make_house: Any) -> None:
    house = make_house(segment_size_bytes=4096)
    house.begin()
    for sequence in range(40):
        send(house, sequence, producer=sequence % 2, size=500)
        house.turn()
    (name,) = snapshots(house)
    house.filesystem.replace_file(f"{house.directory}/{name}", b"damaged", sync=True)
    house.again()
    assert not send(house, 38, producer=0)
    assert not send(house, 39, producer=1)
    house.turn()
    assert [each for each in snapshots(house) if each != name]


def test_a_hole_that_a_power_cut_leaves_ends_the_log(make_house: Any) -> None:
    """A turn goes over two segments, and the cut takes what the first one got of it: what it held is taken again."""
    house = make_house(segment_size_bytes=2000)
    house.begin()
    send(house, 0, size=500)
    send(house, 0, producer=6, size=500)
    house.turn()
    segment = house.store.log.segments[-1]
    whole = house.filesystem.size(segment.prefix + ".log")
    for sequence in range(1, 5):
        send(house, sequence, size=500)
        house.store.write()
    assert len(house.store.log.segments) > 1
    filesystem = house.filesystem.killed()
    fd = filesystem.open(segment.prefix + ".log", os.O_RDWR)
    filesystem.truncate(fd, whole)
    filesystem.close(fd)
    house.again(filesystem, boot_id="2" * 32)
    assert not send(house, 0), "what was safe is known"
    assert not send(house, 0, producer=6)
    assert [send(house, sequence) for sequence in range(1, 5)] == [True] * 4
    house.turn()
    bodies = [bytes(record.body).rstrip(b".") for record in house.store.cursor.read(0, 1 << 30).records]
    assert bodies == [b"5/0/0", b"6/0/0", *[b"5/0/%d" % sequence for sequence in range(1, 5)]]


def test_a_hole_without_numbers_behind_it_costs_no_more(make_house: Any) -> None:
    house = make_house(segment_size_bytes=2000)
    house.begin()
    house.append(b"." * 500)
    house.turn()
    segment = house.store.log.segments[-1]
    whole = house.filesystem.size(segment.prefix + ".log")
    for number in range(6):
        house.append(b"%d" % number + b"." * 500)
        house.store.write()
    filesystem = house.filesystem.killed()
    fd = filesystem.open(segment.prefix + ".log", os.O_RDWR)
    filesystem.truncate(fd, whole)
    filesystem.close(fd)
    house.again(filesystem, boot_id="2" * 32)
    bodies = [bytes(record.body)[:1] for record in house.store.cursor.read(0, 1 << 30).records]
    assert b"0" not in bodies
    assert bodies[0] == b"." and bodies[-1] == b"5"


def test_recovery_moves_its_point_behind_a_snapshot(make_house: Any) -> None:
    """Killed again at once: the next start does not read what the first one has checked."""
    house = make_house(segment_size_bytes=2000)
    house.begin()
    for sequence in range(3):
        send(house, sequence, size=900)
        house.store.write()
    send(house, 0, producer=6, size=900)
    house.store.write()
    house.again()
    house.again()
    assert [send(house, sequence) for sequence in range(3)] == [False] * 3
    assert not send(house, 0, producer=6)


def test_what_could_not_be_written_may_come_again(house: Any) -> None:
    house.begin()
    send(house, 0)
    house.turn()
    send(house, 1)
    send(house, 0, producer=6)

    def full(name: str, path: str) -> OSError | None:
        return OSError(28, "full") if name in ("writev", "write") and path.endswith(".log") else None

    house.filesystem.fault = full
    house.turn()
    house.filesystem.fault = None
    assert house.store.take_failed_ranges() == [(1, 2)]
    assert not send(house, 0)
    assert send(house, 1)
    assert send(house, 0, producer=6)
    house.turn()
    assert house.bodies() == [b"5/0/0", b"5/0/1", b"6/0/0"]


def test_the_silent_are_forgotten() -> None:
    producers = Producers()
    for each in range(PRODUCERS_MAX + 1):
        producers.record(Producer(each, 0, 0, each, 1000), 1 << 40)
        producers.record(Producer(0, 0, each, each, 1000), 1 << 40)
    assert len(producers) == PRODUCERS_MAX
    assert producers.find(1, 1000) is None
    assert producers.find(0, 1000) is not None
    assert producers.find(2, 1000 + SILENT_MS_MAX) is not None
    assert producers.find(2, 1001 + SILENT_MS_MAX) is None


def work(house: Any, told: dict[int, int]) -> None:
    """Two producers, in segments that go; told: of each, the last sequence that was confirmed."""
    for turn in range(30):
        for producer in (1, 2):
            send(house, 2 * turn, producer=producer, size=300)
            send(house, 2 * turn + 1, producer=producer, size=300)
        house.append(b"plain")
        if turn % 7 == 6:
            house.store.ack_range(0, house.store.next_offset - 8)
        house.turn()
        for producer in (1, 2):
            told[producer] = 2 * turn + 1
        house.storage.commits.flush()
        house.loop()


def test_the_machine_ends_at_any_call(make_house: Any) -> None:
    """Whatever was confirmed is a copy afterwards; whatever is in the log is; what is neither can be sent."""
    at = 0
    ended = True
    checked = 0
    while ended and at < 3000:
        house = make_house(segment_size_bytes=4096)
        house.begin()
        left = [at]

        def fault(name: str, path: str, left: list[int] = left) -> OSError | None:
            if left[0] == 0:
                raise KeyboardInterrupt  # the machine ends here
            left[0] -= 1
            return None

        house.filesystem.fault = fault
        told = {1: -1, 2: -1}
        try:
            work(house, told)
            ended = False
        except KeyboardInterrupt:
            pass
        house.filesystem.fault = None
        images: list[SimulatedFileSystem] = [house.filesystem.killed(), house.filesystem.crashed(at)]
        for image in images:
            house.again(image)
            stored = {tuple(map(int, body.rstrip(b".").split(b"/"))) for body in house.bodies() if body != b"plain"}
            for producer in (1, 2):
                last = max([told[producer], *(each[2] for each in stored if each[0] == producer)])
                known = house.store.producers().find(producer, house.clock.time_ms())
                sequence = known.sequence if known is not None else -1
                assert sequence >= last, (at, producer, told, stored)
                # What it takes for a copy was in the log: all that a kill leaves, or was confirmed.
                if sequence > told[producer]:
                    assert (producer, 0, sequence) in stored or image is images[0], (at, producer, sequence)
                assert send(house, sequence + 1, producer=producer)
                checked += 1
            house.turn()
        at += 3
    assert not ended
    assert checked > 400


def test_more_fails_than_is_known_one_by_one() -> None:
    """So many that none of them is safe, of three producers, one of whom had none before: what fails may be sent again,
    and nothing counts as stored that is not."""
    for first in (30, 5_000, UNSAFE_MAX, UNSAFE_MAX + 20_000):
        producers = Producers()
        last = {}
        for offset in range(UNSAFE_MAX + 30_000):
            number = 3 if offset % 1000 == 999 else offset % 2
            producers.record(Producer(number, 0, offset, offset, 1), min(offset, 30))
            if offset < first:
                last[number] = offset
        told = Producers()
        assert told.decode(producers.encode(first))
        producers.undo_from(first)
        for each in (producers, told):
            for number in (0, 1, 3):
                found = each.find(number, 1)
                known = -1 if found is None else found.sequence
                assert known <= last.get(number, -1), (first, number)
                if first > UNSAFE_MAX:
                    assert known == last[number], "it is known one by one"
        producers.record(Producer(0, 0, first + 7, first, 1), first)
        producers.record(Producer(1, 0, first + 8, first + 1, 1), first + 2)
        producers.undo_from(first + 2)
        assert producers.find(0, 1).sequence == first + 7
