"""What a crash or a damaged medium leaves, opened again."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from typing import Any

import pytest
from simulated_filesystem import SimulatedFileSystem

from amqpd.storage.acks.ack_set import HEADER, encode_entry
from amqpd.storage.log.checkpoint import UnknownFormat, read_high_watermark
from amqpd.storage.log.recovery import DamagedLog
from amqpd.storage.log.segment import Segment


def filled(house: Any, turns: int = 6, each: int = 3, size: int = 40) -> list[int]:
    """Some batches, one per turn; returns where in the log each ends."""
    house.begin()
    ends = []
    for turn in range(turns):
        house.append(*(b"%d.%d" % (turn, number) + b"." * size for number in range(each)))
        house.turn()
        ends.append(len(house.log()))
    return ends


def test_nothing_there_is_an_empty_log(house: Any) -> None:
    house.begin()
    store = house.again()
    assert (store.record_count, store.next_offset, store.delivered_mark) == (0, 0, -1)
    assert house.bodies() == []


def test_a_kill_loses_nothing_that_was_written(house: Any) -> None:
    filled(house)
    before = house.bodies()
    store = house.again()
    assert house.bodies() == before
    assert store.record_count == 18
    assert store.size_bytes == sum(map(len, before))
    assert not store.has_lost_offsets


@pytest.mark.slow
@pytest.mark.parametrize("tail", ["cut", "zeros", "ones", "old"])
def test_torn_tail_at_every_byte(house: Any, tail: str) -> None:
    """Whatever stands where the log was torn: all whole batches are there, no more, and appending goes on."""
    ends = filled(house)
    house.store.mark_delivered(17)
    house.store.ack(2)
    house.store.ack(16)
    house.turn()
    whole = bytes(house.log())
    image = house.filesystem
    house.data("high-watermark")[:] = bytes(16)  # as before the sync: a tail that was synced is not torn but damaged
    for size in range(ends[2] - 5, len(whole)):
        log = house.log()
        if tail == "cut":
            log[:] = whole[:size]
        elif tail == "zeros":
            log[:] = whole[:size] + bytes(len(whole) - size)
        elif tail == "ones":
            log[:] = whole[:size] + b"\xff" * (len(whole) - size)
        else:
            log[:] = whole[:size] + whole[: len(whole) - size]  # batches whose offsets do not fit
        store = house.again(image.killed())
        kept = max([number + 1 for number, end in enumerate(ends) if end <= size], default=0)
        assert store.next_offset == 3 * kept
        assert house.offsets() == [offset for offset in range(3 * kept) if offset not in {2, 16}]
        assert len(house.log()) == ([0, *ends])[kept]
        assert store.delivered_mark == 3 * kept - 1
        assert not store.has_lost_offsets
        house.append(b"new", b"newer")  # the offset of a settlement that was cut off is used again
        house.turn()
        again = house.again()
        assert house.bodies()[-2:] == [b"new", b"newer"]
        assert again.record_count == len(house.offsets())
        house.filesystem = image
        house.log()[:] = whole


def test_synced_before_anything_is_appended(house: Any) -> None:
    filled(house)
    del house.log()[-3:]
    store = house.again()
    calls = [name for name, path in house.filesystem.calls if path.endswith(".log") or path == house.directory]
    assert calls[calls.index("truncate") :].count("fdatasync") == 1
    assert "fsync_dir" in calls
    assert store.torn_bytes > 0


@pytest.mark.parametrize("clean", [True, False])
def test_bad_batch_in_the_middle(make_house: Callable[..., Any], clean: bool) -> None:
    """Large batches, so that each has an index entry: the damaged one is lost, what is behind it is not."""
    house = make_house()
    ends = filled(house, size=3000)
    if clean:
        house.storage.close(clean=True)
    house.log()[ends[2] + 200] ^= 4
    store = house.again()
    assert house.offsets() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 14, 15, 16, 17]
    assert store.has_lost_offsets
    assert store.lost == [(9, 11)]
    assert store.record_count == 15
    store.ack(0)
    house.turn()
    assert house.again().lost == [(9, 11)]  # it is still known at the next start


def test_lost_offsets_are_logged_wherever_they_are(
    make_house: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """In a sealed segment as in the last one; once, not with every start."""
    house = make_house(segment_size_bytes=30_000)
    ends = filled(house, size=3000)
    logs = [path for path in house.filesystem.listdir(house.directory) if path.endswith(".log")]
    assert len(logs) > 1, "the damaged segment is to be a sealed one"
    house.filesystem._get(f"{house.directory}/{min(logs)}").data[ends[0] + 200] ^= 4
    house.filesystem.unlink(f"{house.directory}/recovery-point-checkpoint")
    for name in house.filesystem.listdir(house.directory):
        if name.endswith(".settled"):  # its totals: else a sealed segment is not read at the start
            house.filesystem.unlink(f"{house.directory}/{name}")
    assert house.again().lost == [(3, 5)]
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert f"{house.directory}/{0:020d}.log is damaged: offsets 3 to 5 are lost" in told
    caplog.clear()
    assert house.again().lost == [(3, 5)]
    assert not any("are lost" in record.getMessage() for record in caplog.records)


def test_damage_to_what_was_settled_loses_nothing(make_house: Callable[..., Any]) -> None:
    """`.settled` tells that its messages were done with (or that there never were any): nobody misses them."""
    house = make_house(segment_size_bytes=1 << 20)
    ends = filled(house)
    for offset in range(3, 6):
        house.store.ack(offset)
    house.turn()
    house.storage.commits.flush()
    house.loop()
    house.log()[ends[0] + 70] ^= 1  # in the second batch, of which all is settled
    store = house.again()
    assert (store.lost, store.has_lost_offsets) == ([], False)
    assert house.offsets() == [0, 1, 2, *range(6, 18)]


def test_a_start_after_a_kill_leaves_right_indexes_as_they_are(make_house: Callable[..., Any]) -> None:
    house = make_house()
    filled(house, turns=40, each=10, size=200)
    inodes = {name: house.filesystem._get(f"{house.directory}/{name}") for name in house.names(".index")}
    assert inodes and house.data(house.names(".index")[0])
    house.again(house.filesystem)
    assert {name: house.filesystem._get(f"{house.directory}/{name}") for name in inodes} == inodes
    right = bytes(house.data(house.names(".index")[0]))
    del house.data(house.names(".index")[0])[8:]
    house.again()
    house.append(b"x")
    house.turn()
    assert house.data(house.names(".index")[0]).startswith(right), "what was missing of it is there again"
    house.data(house.names(".index")[0])[3] ^= 1
    house.again()
    assert house.data(house.names(".index")[0]).startswith(right)


def test_strict_recovery_refuses(make_house: Callable[..., Any]) -> None:
    house = make_house(strict=True)
    ends = filled(house, size=3000)
    house.log()[ends[2] + 200] ^= 4
    with pytest.raises(DamagedLog):
        house.again()


def test_a_body_that_looks_like_a_batch_is_not_one(house: Any) -> None:
    """The batch around it is damaged: its content is lost, and not delivered as somebody's message."""
    filled(house, turns=3)
    forged = bytes(house.log())  # three good batches with offsets that would fit
    house.begin()
    house.append(b"first")
    house.turn()
    start = len(house.log())
    house.append(bytes(5000) + forged + bytes(5000))
    house.append(b"in the same batch")
    house.turn()
    house.append(b"last" * 2000)
    house.turn()
    for position in [*range(start, start + 12), *range(start + 16, start + 61)]:  # the epoch is not covered by the CRC
        house.log()[position] ^= 0x10
        image = house.filesystem
        house.again()
        assert set(house.bodies()) <= {b"first", b"last" * 2000}
        house.filesystem = image
        house.log()[position] ^= 0x10


def test_random_flips_lose_one_batch_at_most(house: Any) -> None:
    """Over all kinds of files: never wrong bytes, never a start that fails; only a flip in the log loses, one batch."""
    chance = random.Random(7)
    ends = filled(house, turns=8, size=1500)
    house.store.ack(1)
    house.store.mark_returned(4, 2)
    house.storage.commits.flush()
    house.storage.close(clean=False)
    good = house.bodies()
    image = house.filesystem
    files = [name for name in image.listdir(house.directory) if house.data(name)]
    assert {name.rpartition(".")[2] for name in files} >= {"log", "index", "settled"}
    for _ in range(400):
        name = chance.choice(files)
        data = house.data(name)
        place = chance.randrange(len(data) * 8)
        data[place // 8] ^= 1 << (place % 8)
        store = house.again(image.killed())
        bodies = house.bodies()
        assert set(bodies) <= {*good, b"0.1" + b"." * 1500}
        if name.endswith(".log"):
            assert len(bodies) >= len(good) - 3
        else:
            assert set(bodies) >= set(good)
        assert store.record_count == len(bodies)
        house.append(b"more")
        house.turn()
        house.filesystem = image
        data[place // 8] ^= 1 << (place % 8)
    assert len(ends) == 8


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".settled", "checkpoint", "high-watermark", "queue.json"])
@pytest.mark.parametrize("damage", ["missing", "empty", "junk"])
def test_side_files_may_go(make_house: Callable[..., Any], suffix: str, damage: str) -> None:
    house = make_house(segment_size_bytes=4000)
    filled(house, turns=12, size=900)
    house.store.ack(0)
    house.storage.close(clean=True)
    for name in house.names(suffix):
        if damage == "missing":
            house.filesystem.unlink(f"{house.directory}/{name}")
        else:
            house.data(name)[:] = b"" if damage == "empty" else b"\x5a" * 77
    house.again()
    assert house.offsets()[-35:] == list(range(1, 36))
    assert house.store.cursor.read_one(20).offset == 20
    house.append(b"new")
    house.turn()
    house.again()
    assert house.bodies()[-1] == b"new"


def test_newer_format_is_refused_and_left_alone(house: Any) -> None:
    filled(house)
    name = house.names(".settled")[0]
    house.data(name)[:32] = encode_entry(HEADER, 0, 99, 0)
    before = {each: bytes(house.data(each)) for each in house.filesystem.listdir(house.directory)}
    with pytest.raises(UnknownFormat):
        house.again()
    assert {each: bytes(house.data(each)) for each in house.filesystem.listdir(house.directory)} == before


def test_a_new_epoch_for_each_life_that_writes(house: Any) -> None:
    filled(house, turns=1)
    for body in (b"second", b"third"):
        house.again()
        house.append(body)
        house.turn()
    house.again()  # reads only
    assert bytes(house.data("leader-epoch-checkpoint")).decode().split("\n") == ["0", "3", "0 0", "1 3", "2 4", ""]
    assert house.log()[12:16] == b"\x00\x00\x00\x00"
    assert house.log()[-200:].count(b"third") == 1


@pytest.mark.parametrize(("clean", "boot", "first_new"), [(True, "2", 4), (False, "1", 4), (False, "2", 18)])
def test_redelivered_is_truthful(house: Any, clean: bool, boot: str, first_new: int) -> None:
    """After a kill what was delivered is marked; after a power cut everything is, since the mark may be lost."""
    filled(house)
    house.store.mark_delivered(3)
    house.turn()
    if clean:
        house.storage.close(clean=True)
    store = house.again(boot_id=boot * 32)
    assert [offset for offset in range(18) if not store.redelivered(offset)] == list(range(first_new, 18))


def test_returned_offsets_keep_their_count(house: Any) -> None:
    filled(house)
    house.store.mark_returned(5, 3)
    house.store.mark_returned(9, 1)
    house.turn()
    house.store.ack(9)
    house.turn()
    store = house.again()
    assert store.returned == {5: 3}
    assert store.cursor.read_one(5).delivery_count == 3
    assert store.redelivered(5)
    assert not store.redelivered(6)


def test_transient_messages_go_with_the_process(make_house: Callable[..., Any]) -> None:
    for clean in (True, False):
        house = make_house(segment_size_bytes=3000)
        house.begin()
        for turn in range(20):
            house.append(b"durable %d" % turn + b"." * 100)
            house.append(b"transient" + b"." * 200, persistent=False)
            house.turn()
        assert len(house.names(".log")) > 1
        assert house.store.record_count == 40
        if clean:
            house.storage.close(clean=True)
        store = house.again()
        assert [body[:9] for body in house.bodies()] == [b"durable %d" % turn for turn in range(20)][:0] or all(
            body.startswith(b"durable") for body in house.bodies()
        )
        assert store.record_count == 20
        assert len(house.bodies()) == 20


@pytest.mark.parametrize("segment_size_bytes", [3000, 1 << 20])
@pytest.mark.parametrize("clean", [True, False])
def test_bytes_of_settled_transient_messages_count_once(
    make_house: Callable[..., Any], clean: bool, segment_size_bytes: int
) -> None:
    """Some of a batch were acked, and the restart settles the others: what is left is what durable ones have."""
    house = make_house(segment_size_bytes=segment_size_bytes)
    house.begin()
    sizes: dict[int, int] = {}
    for turn in range(12):
        for persistent in (False, True):
            bodies = [b"." * (100 + 7 * turn + number) for number in range(5)]
            sizes.update(zip(house.append(*bodies, persistent=persistent), map(len, bodies), strict=True))
        house.turn()
    for offset in [each for each in sizes if each % 10 in (1, 2, 4, 5, 6, 9)]:  # 4 to 6 in one run, over the border
        house.store.ack(offset, sizes.pop(offset))
        if offset % 3 == 0:
            house.turn()
    house.turn()
    assert house.store.size_bytes == sum(sizes.values())
    if clean:
        house.storage.close(clean=True)
    store = house.again()
    durable = {offset: size for offset, size in sizes.items() if offset % 10 >= 5}
    assert house.offsets() == list(durable)
    assert store.size_bytes == sum(durable.values())


def test_a_transaction_is_whole_or_not_there(house: Any) -> None:
    """Several batches and a marker: cut anywhere, none of it counts; the offsets in front of it do."""
    house.begin()
    house.append(b"before")
    house.turn()
    start = len(house.log())
    house.store.begin_transaction()
    house.append(*(b"%d" % number for number in range(150)))
    house.store.end_transaction()
    house.turn()
    whole = bytes(house.log())
    image = house.filesystem
    for size in [*range(start, len(whole), 97), len(whole) - 1]:
        house.log()[:] = whole[:size]
        store = house.again(image.killed())
        assert house.bodies() == [b"before"]
        assert store.record_count == 1
        house.append(b"after")
        house.turn()
        house.again()
        assert house.bodies() == [b"before", b"after"]
        house.filesystem = image
        house.log()[:] = whole
    store = house.again(image.killed())
    assert store.record_count == 151
    assert store.next_offset == 152  # the marker has taken one
    assert house.bodies()[1:] == [b"%d" % number for number in range(150)]


def test_readers_outside_see_what_a_kill_left(house: Any) -> None:
    """What was written and not yet synced is there after a kill; recovery's sync moves the high watermark behind it,
    though nothing is appended any more: an export reads up to there.
    """
    filled(house, turns=2)
    house.append(b"written")
    house.storage.commits._write_dirty()  # and killed before the sync
    path = f"{house.directory}/high-watermark"
    killed = house.filesystem.killed()
    assert read_high_watermark(killed, path) == 6
    house.again(killed)
    assert read_high_watermark(killed, path) == 6, "not before the sync"
    house.storage.commits.flush()
    house.loop()
    assert read_high_watermark(killed, path) == house.store.next_offset == 7


def test_a_log_that_could_not_be_opened_is_opened_by_the_next_call(house: Any) -> None:
    """Whichever of its calls finds no descriptor: nothing of the first try is left to be met by the second."""
    filled(house, turns=5)
    wanted = house.bodies()
    house.store.ack(0)
    house.turn()
    image = house.filesystem.killed()
    calls = 0

    def fault(name: str, path: str) -> OSError | None:
        nonlocal calls
        if name in {"open", "listdir"}:
            calls += 1
            if calls == number:
                return OSError(errno.EMFILE, "Too many open files")
        return None

    number = tries = 0
    while calls >= number:
        number, calls = number + 1, 0
        house.filesystem = image.killed()
        house._storage()
        house.store = house.storage.open_queue("v", house.queue_id)
        house.filesystem.fault = fault
        try:
            house.store.recover()
        except OSError:
            assert not house.store.ready
            tries += 1
        house.filesystem.fault = None
        house.store.recover()
        assert (house.store.record_count, house.store.next_offset) == (14, 15)
        assert house.bodies() == wanted[1:]
        assert house.store.log.epochs == [(0, 0)]
    assert tries > 4


def test_a_want_of_descriptors_passes(make_house: Callable[..., Any]) -> None:
    """Appends are refused while no file can be opened, and taken again after: with one epoch for this life, and with
    the directory synced before the confirm, wherever it began.
    """
    for number in range(1, 30):
        house = make_house(segment_size_bytes=500)
        filled(house, turns=2)
        house.again()
        calls = 0
        waits: list[float] = []  # the committer waits, and somebody lets go of a descriptor

        def fault(name: str, path: str, number: int = number, waits: list[float] = waits) -> OSError | None:
            nonlocal calls
            calls += name == "open"
            short = name == "open" and calls >= number and not waits
            return OSError(errno.EMFILE, "Too many open files") if short else None

        house.filesystem.fault = fault
        house.filesystem.pause = waits.append
        refused = 0
        for each in range(4):
            waits.clear()
            house.append(b"%d" % each + b"." * 300)
            house.turn()
            refused += sum(last - first + 1 for first, last in house.store.take_failed_ranges())
        assert not house.store.failed
        house.filesystem.fault = None
        house.append(b"again")
        house.turn()
        house.storage.commits.flush()
        house.loop()
        assert not any(failed for _, failed in house.commits[-1:])
        assert house.bodies()[-1] == b"again"
        assert len(house.bodies()) == 6 + 4 - refused + 1
        before = house.bodies()
        house.again(house.filesystem.crashed(number))
        assert house.bodies() == before
        assert [epoch for epoch, _ in house.store.log.epochs] == [0, 1]
        if not refused:
            return
    raise AssertionError("appends never went through")


@pytest.mark.parametrize("lives", ["kill", "clean", "kill clean", "clean kill", "kill clean kill clean"])
def test_bytes_of_transient_messages_count_once(house: Any, lives: str) -> None:
    """Acked one by one out of their batch, before a kill and before a clean stop: what is left has the bytes it has."""
    house.begin()
    house.append(b"p" * 1000)
    house.append(*[b"t" * 10] * 6, persistent=False)
    house.append(b"q" * 100)
    house.store.ack(6, 10)  # in no file yet, and so is what stands beside it, of the other kind
    house.store.ack(7, 100)
    house.turn()
    house.store.ack(2, 10)
    house.turn()
    for number, life in enumerate(lives.split(), 2):
        house.append(b"")
        house.turn()
        if life == "clean":
            house.storage.close(clean=True)
        house.again()
        assert (house.store.record_count, house.store.size_bytes) == (number, 1000)


@pytest.mark.parametrize("rewrite_from", [1 << 20, 200])
def test_bytes_after_any_lives(
    make_house: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, rewrite_from: int
) -> None:
    """Both kinds in one log, settled in any order, over kills and clean stops, and `.settled` files written anew."""
    monkeypatch.setattr("amqpd.storage.log.segment.REWRITE_FROM", rewrite_from)
    for seed in range(40):
        chance = random.Random(seed)
        house = make_house(segment_size_bytes=chance.choice((1 << 26, 3000, 1500)))
        store = house.begin()
        live: dict[int, int] = {}
        kept: set[int] = set()
        for _ in range(chance.randint(1, 4)):
            for _ in range(chance.randint(1, 6)):
                for _ in range(chance.randint(1, 12)):
                    body = b"x" * chance.randint(0, 50)
                    persistent = chance.random() < 0.5
                    (offset,) = house.append(body, persistent=persistent)
                    live[offset] = len(body)
                    if persistent:
                        kept.add(offset)
                for part in (0.3, 0.6):
                    if chance.random() < 0.7:
                        house.turn()
                    for offset in [each for each in live if chance.random() < part]:
                        store.ack(offset, live.pop(offset))
                assert (store.record_count, store.size_bytes) == (len(live), sum(live.values())), seed
            house.turn()
            if chance.random() < 0.5:
                house.storage.close(clean=True)
            store = house.again()
            live = {offset: size for offset, size in live.items() if offset in kept}
            assert (store.record_count, store.size_bytes) == (len(live), sum(live.values())), seed


@pytest.mark.parametrize(
    ("ranges", "end", "left"),
    [
        ([(2, 4), (6, 8)], 9, [(2, 4), (6, 8)]),
        ([(2, 4), (6, 8)], 8, [(2, 4), (6, 7)]),
        ([(2, 4), (6, 8)], 6, [(2, 4)]),
        ([(2, 4), (6, 8)], 5, [(2, 4)]),
        ([(2, 4), (6, 8)], 2, []),
        ([(2, 4), (6, 8)], 0, []),
        ([(6, 8)], 6, []),
    ],
)
def test_a_range_that_begins_at_the_end_or_beyond_goes(
    ranges: list[tuple[int, int]], end: int, left: list[tuple[int, int]]
) -> None:
    segment = Segment(SimulatedFileSystem(), "/log", 0)
    for first, last in ranges:
        segment.settled.add(first, last)
    segment.gaps = list(ranges)
    segment.lost = list(ranges)
    segment.acked_transient = [(first, last, 10) for first, last in ranges]
    segment.truncate_acks(end)
    assert segment.settled.ranges() == left
    assert segment.settled.highest == max([last for _, last in left], default=-1)
    assert segment.gaps == segment.lost == left
    assert segment.acked_transient == [(first, last, 10) for first, last in ranges if last < end]
