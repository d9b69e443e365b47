"""Recovery of a log after a crash or with damaged files."""

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


def fill(harness: Any, turns: int = 6, each: int = 3, size: int = 40) -> list[int]:
    """Write one batch per turn. Return the end position of each batch in the log."""
    harness.create_log()
    ends = []
    for turn in range(turns):
        harness.append(*(b"%d.%d" % (turn, number) + b"." * size for number in range(each)))
        harness.end_turn()
        ends.append(len(harness.log()))
    return ends


def test_missing_files_are_an_empty_log(harness: Any) -> None:
    harness.create_log()
    store = harness.restart()
    assert (store.record_count, store.next_offset, store.delivered_mark) == (0, 0, -1)
    assert harness.bodies() == []


def test_kill_loses_no_written_record(harness: Any) -> None:
    fill(harness)
    before = harness.bodies()
    store = harness.restart()
    assert harness.bodies() == before
    assert store.record_count == 18
    assert store.size_bytes == sum(map(len, before))
    assert not store.has_lost_offsets


@pytest.mark.slow
@pytest.mark.parametrize("tail", ["cut", "zeros", "ones", "old"])
def test_log_torn_at_any_byte_keeps_its_whole_batches(harness: Any, tail: str) -> None:
    """With any bytes after the tear, all whole batches are there and no others, and appends work."""
    ends = fill(harness)
    harness.store.mark_delivered(17)
    harness.store.ack(2)
    harness.store.ack(16)
    harness.end_turn()
    whole = bytes(harness.log())
    image = harness.filesystem
    harness.data("high-watermark")[:] = bytes(16)  # as before the sync: a synced tail counts as damaged, not as torn
    for size in range(ends[2] - 5, len(whole)):
        log = harness.log()
        if tail == "cut":
            log[:] = whole[:size]
        elif tail == "zeros":
            log[:] = whole[:size] + bytes(len(whole) - size)
        elif tail == "ones":
            log[:] = whole[:size] + b"\xff" * (len(whole) - size)
        else:
            log[:] = whole[:size] + whole[: len(whole) - size]  # batches whose offsets do not fit
        store = harness.restart(image.killed())
        kept = max([number + 1 for number, end in enumerate(ends) if end <= size], default=0)
        assert store.next_offset == 3 * kept
        assert harness.offsets() == [offset for offset in range(3 * kept) if offset not in {2, 16}]
        assert len(harness.log()) == ([0, *ends])[kept]
        assert store.delivered_mark == 3 * kept - 1
        assert not store.has_lost_offsets
        harness.append(b"new", b"newer")  # the offset of an ack that was cut off is used again
        harness.end_turn()
        restarted = harness.restart()
        assert harness.bodies()[-2:] == [b"new", b"newer"]
        assert restarted.record_count == len(harness.offsets())
        harness.filesystem = image
        harness.log()[:] = whole


def test_recovery_syncs_before_the_first_append(harness: Any) -> None:
    fill(harness)
    del harness.log()[-3:]
    harness.restart()
    calls = [name for name, path in harness.filesystem.calls if path.endswith(".log") or path == harness.directory]
    assert calls[calls.index("truncate") :].count("fdatasync") == 1
    assert "fsync_dir" in calls


@pytest.mark.parametrize("clean", [True, False])
def test_bad_batch_in_the_middle_loses_only_that_batch(make_harness: Callable[..., Any], clean: bool) -> None:
    """The batches are large, so that each has an index entry."""
    harness = make_harness()
    ends = fill(harness, size=3000)
    if clean:
        harness.storage.close(clean=True)
    harness.log()[ends[2] + 200] ^= 4
    store = harness.restart()
    assert harness.offsets() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 14, 15, 16, 17]
    assert store.has_lost_offsets
    assert store.lost == [(9, 11)]
    assert store.record_count == 15
    store.ack(0)
    harness.end_turn()
    assert harness.restart().lost == [(9, 11)]  # still known at the next start


def test_lost_offsets_of_a_sealed_segment_are_logged_once(
    make_harness: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A sealed segment is treated like the last one. The next start does not log the loss again."""
    harness = make_harness(segment_size_bytes=30_000)
    ends = fill(harness, size=3000)
    logs = [path for path in harness.filesystem.listdir(harness.directory) if path.endswith(".log")]
    assert len(logs) > 1, "the damaged segment must be a sealed one"
    harness.filesystem._get(f"{harness.directory}/{min(logs)}").data[ends[0] + 200] ^= 4
    harness.filesystem.unlink(f"{harness.directory}/recovery-point-checkpoint")
    for name in harness.filesystem.listdir(harness.directory):
        if name.endswith(".settled"):  # it has totals: without them a sealed segment is read at the start
            harness.filesystem.unlink(f"{harness.directory}/{name}")
    assert harness.restart().lost == [(3, 5)]
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert f"{harness.directory}/{0:020d}.log is damaged: offsets 3 to 5 are lost" in errors
    caplog.clear()
    assert harness.restart().lost == [(3, 5)]
    assert not any("are lost" in record.getMessage() for record in caplog.records)


def test_damage_to_acked_records_loses_nothing(make_harness: Callable[..., Any]) -> None:
    """`.settled` shows that the messages were acked or never existed."""
    harness = make_harness(segment_size_bytes=1 << 20)
    ends = fill(harness)
    for offset in range(3, 6):
        harness.store.ack(offset)
    harness.end_turn()
    harness.storage.commits.flush()
    harness.run_callbacks()
    harness.log()[ends[0] + 70] ^= 1  # in the second batch, which is fully acked
    store = harness.restart()
    assert (store.lost, store.has_lost_offsets) == ([], False)
    assert harness.offsets() == [0, 1, 2, *range(6, 18)]


def test_recovery_leaves_correct_indexes_unchanged(make_harness: Callable[..., Any]) -> None:
    harness = make_harness()
    fill(harness, turns=40, each=10, size=200)
    inodes = {name: harness.filesystem._get(f"{harness.directory}/{name}") for name in harness.names(".index")}
    assert inodes and harness.data(harness.names(".index")[0])
    harness.restart(harness.filesystem)
    assert {name: harness.filesystem._get(f"{harness.directory}/{name}") for name in inodes} == inodes
    right = bytes(harness.data(harness.names(".index")[0]))
    del harness.data(harness.names(".index")[0])[8:]
    harness.restart()
    harness.append(b"x")
    harness.end_turn()
    assert harness.data(harness.names(".index")[0]).startswith(right), "the missing entries are there again"
    harness.data(harness.names(".index")[0])[3] ^= 1
    harness.restart()
    assert harness.data(harness.names(".index")[0]).startswith(right)


def test_strict_recovery_refuses_a_damaged_log(make_harness: Callable[..., Any]) -> None:
    harness = make_harness(strict=True)
    ends = fill(harness, size=3000)
    harness.log()[ends[2] + 200] ^= 4
    with pytest.raises(DamagedLog):
        harness.restart()


def test_body_that_looks_like_a_batch_is_not_delivered(harness: Any) -> None:
    """The batch around the body is damaged: its content is lost and not delivered as messages."""
    fill(harness, turns=3)
    forged = bytes(harness.log())  # three good batches with offsets that would fit
    harness.create_log()
    harness.append(b"first")
    harness.end_turn()
    start = len(harness.log())
    harness.append(bytes(5000) + forged + bytes(5000))
    harness.append(b"in the same batch")
    harness.end_turn()
    harness.append(b"last" * 2000)
    harness.end_turn()
    for position in [*range(start, start + 12), *range(start + 16, start + 61)]:  # the epoch is not covered by the CRC
        harness.log()[position] ^= 0x10
        image = harness.filesystem
        harness.restart()
        assert set(harness.bodies()) <= {b"first", b"last" * 2000}
        harness.filesystem = image
        harness.log()[position] ^= 0x10


def test_random_bit_flip_loses_one_batch_at_most(harness: Any) -> None:
    """In no kind of file does a flip cause wrong bytes or a failed start. Only a flip in the log loses a batch."""
    chance = random.Random(7)
    ends = fill(harness, turns=8, size=1500)
    harness.store.ack(1)
    harness.store.mark_returned(4, 2)
    harness.storage.commits.flush()
    harness.storage.close(clean=False)
    good = harness.bodies()
    image = harness.filesystem
    files = [name for name in image.listdir(harness.directory) if harness.data(name)]
    assert {name.rpartition(".")[2] for name in files} >= {"log", "index", "settled"}
    for _ in range(400):
        name = chance.choice(files)
        data = harness.data(name)
        place = chance.randrange(len(data) * 8)
        data[place // 8] ^= 1 << (place % 8)
        store = harness.restart(image.killed())
        bodies = harness.bodies()
        assert set(bodies) <= {*good, b"0.1" + b"." * 1500}
        if name.endswith(".log"):
            assert len(bodies) >= len(good) - 3
        else:
            assert set(bodies) >= set(good)
        assert store.record_count == len(bodies)
        harness.append(b"more")
        harness.end_turn()
        harness.filesystem = image
        data[place // 8] ^= 1 << (place % 8)
    assert len(ends) == 8


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".settled", "checkpoint", "high-watermark", "queue.json"])
@pytest.mark.parametrize("damage", ["missing", "empty", "junk"])
def test_damaged_side_files_lose_no_message(make_harness: Callable[..., Any], suffix: str, damage: str) -> None:
    harness = make_harness(segment_size_bytes=4000)
    fill(harness, turns=12, size=900)
    harness.store.ack(0)
    harness.storage.close(clean=True)
    for name in harness.names(suffix):
        if damage == "missing":
            harness.filesystem.unlink(f"{harness.directory}/{name}")
        else:
            harness.data(name)[:] = b"" if damage == "empty" else b"\x5a" * 77
    harness.restart()
    assert harness.offsets()[-35:] == list(range(1, 36))
    assert harness.store.cursor.read_one(20).offset == 20
    harness.append(b"new")
    harness.end_turn()
    harness.restart()
    assert harness.bodies()[-1] == b"new"


def test_newer_format_is_refused_and_left_unchanged(harness: Any) -> None:
    fill(harness)
    name = harness.names(".settled")[0]
    harness.data(name)[:32] = encode_entry(HEADER, 0, 99, 0)
    before = {each: bytes(harness.data(each)) for each in harness.filesystem.listdir(harness.directory)}
    with pytest.raises(UnknownFormat):
        harness.restart()
    assert {each: bytes(harness.data(each)) for each in harness.filesystem.listdir(harness.directory)} == before


def test_each_start_that_writes_begins_an_epoch(harness: Any) -> None:
    fill(harness, turns=1)
    for body in (b"second", b"third"):
        harness.restart()
        harness.append(body)
        harness.end_turn()
    harness.restart()  # reads only
    assert bytes(harness.data("leader-epoch-checkpoint")).decode().split("\n") == ["0", "3", "0 0", "1 3", "2 4", ""]
    assert harness.log()[12:16] == b"\x00\x00\x00\x00"
    assert harness.log()[-200:].count(b"third") == 1


@pytest.mark.parametrize(("clean", "boot", "first_new"), [(True, "2", 4), (False, "1", 4), (False, "2", 18)])
def test_redelivered_after_clean_stop_kill_and_power_cut(harness: Any, clean: bool, boot: str, first_new: int) -> None:
    """After a kill the delivered messages are marked. After a power cut all are, because the mark may be lost."""
    fill(harness)
    harness.store.mark_delivered(3)
    harness.end_turn()
    if clean:
        harness.storage.close(clean=True)
    store = harness.restart(boot_id=boot * 32)
    assert [offset for offset in range(18) if not store.redelivered(offset)] == list(range(first_new, 18))


def test_returned_offsets_keep_their_count(harness: Any) -> None:
    fill(harness)
    harness.store.mark_returned(5, 3)
    harness.store.mark_returned(9, 1)
    harness.end_turn()
    harness.store.ack(9)
    harness.end_turn()
    store = harness.restart()
    assert store.returned == {5: 3}
    assert store.cursor.read_one(5).delivery_count == 3
    assert store.redelivered(5)
    assert not store.redelivered(6)


def test_transient_messages_are_dropped_at_a_restart(make_harness: Callable[..., Any]) -> None:
    for clean in (True, False):
        harness = make_harness(segment_size_bytes=3000)
        harness.create_log()
        for turn in range(20):
            harness.append(b"durable %d" % turn + b"." * 100)
            harness.append(b"transient" + b"." * 200, persistent=False)
            harness.end_turn()
        assert len(harness.names(".log")) > 1
        assert harness.store.record_count == 40
        if clean:
            harness.storage.close(clean=True)
        store = harness.restart()
        assert [body[:9] for body in harness.bodies()] == [b"durable %d" % turn for turn in range(20)][:0] or all(
            body.startswith(b"durable") for body in harness.bodies()
        )
        assert store.record_count == 20
        assert len(harness.bodies()) == 20


@pytest.mark.parametrize("segment_size_bytes", [3000, 1 << 20])
@pytest.mark.parametrize("clean", [True, False])
def test_bytes_of_acked_transient_messages_count_once(
    make_harness: Callable[..., Any], clean: bool, segment_size_bytes: int
) -> None:
    """Some messages of a batch are acked; the restart acks the other transient ones. The durable ones' bytes remain."""
    harness = make_harness(segment_size_bytes=segment_size_bytes)
    harness.create_log()
    sizes: dict[int, int] = {}
    for turn in range(12):
        for persistent in (False, True):
            bodies = [b"." * (100 + 7 * turn + number) for number in range(5)]
            sizes.update(zip(harness.append(*bodies, persistent=persistent), map(len, bodies), strict=True))
        harness.end_turn()
    for offset in [
        each for each in sizes if each % 10 in (1, 2, 4, 5, 6, 9)
    ]:  # 4 to 6 in one run, across the batch border
        harness.store.ack(offset, sizes.pop(offset))
        if offset % 3 == 0:
            harness.end_turn()
    harness.end_turn()
    assert harness.store.size_bytes == sum(sizes.values())
    if clean:
        harness.storage.close(clean=True)
    store = harness.restart()
    durable = {offset: size for offset, size in sizes.items() if offset % 10 >= 5}
    assert harness.offsets() == list(durable)
    assert store.size_bytes == sum(durable.values())


def test_partial_transaction_is_dropped(harness: Any) -> None:
    """The transaction has several batches and a marker. Cut anywhere, none of it counts; the records before it do."""
    harness.create_log()
    harness.append(b"before")
    harness.end_turn()
    start = len(harness.log())
    harness.store.begin_transaction()
    harness.append(*(b"%d" % number for number in range(150)))
    harness.store.end_transaction()
    harness.end_turn()
    whole = bytes(harness.log())
    image = harness.filesystem
    for size in [*range(start, len(whole), 97), len(whole) - 1]:
        harness.log()[:] = whole[:size]
        store = harness.restart(image.killed())
        assert harness.bodies() == [b"before"]
        assert store.record_count == 1
        harness.append(b"after")
        harness.end_turn()
        harness.restart()
        assert harness.bodies() == [b"before", b"after"]
        harness.filesystem = image
        harness.log()[:] = whole
    store = harness.restart(image.killed())
    assert store.record_count == 151
    assert store.next_offset == 152  # the marker has an offset, too
    assert harness.bodies()[1:] == [b"%d" % number for number in range(150)]


def test_recovery_moves_the_high_watermark_without_an_append(harness: Any) -> None:
    """Records written but not synced survive a kill. Recovery syncs them and moves the high watermark, up to which an
    export reads.
    """
    fill(harness, turns=2)
    harness.append(b"written")
    harness.storage.commits._write_dirty()  # killed before the sync
    path = f"{harness.directory}/high-watermark"
    image = harness.filesystem.killed()
    assert read_high_watermark(image, path) == 6
    harness.restart(image)
    assert read_high_watermark(image, path) == 6, "not before the sync"
    harness.storage.commits.flush()
    harness.run_callbacks()
    assert read_high_watermark(image, path) == harness.store.next_offset == 7


def test_log_that_cannot_be_opened_is_opened_by_the_next_call(harness: Any) -> None:
    """For each call that can find no descriptor: the first attempt leaves nothing that disturbs the second."""
    fill(harness, turns=5)
    expected = harness.bodies()
    harness.store.ack(0)
    harness.end_turn()
    image = harness.filesystem.killed()
    calls = 0

    def fault(name: str, path: str) -> OSError | None:
        nonlocal calls
        if name in {"open", "listdir"}:
            calls += 1
            if calls == number:
                return OSError(errno.EMFILE, "Too many open files")
        return None

    number = failures = 0
    while calls >= number:
        number, calls = number + 1, 0
        harness.filesystem = image.killed()
        harness._open_storage()
        harness.store = harness.storage.open_queue("v", harness.queue_id)
        harness.filesystem.fault = fault
        try:
            harness.store.recover()
        except OSError:
            assert not harness.store.ready
            failures += 1
        harness.filesystem.fault = None
        harness.store.recover()
        assert (harness.store.record_count, harness.store.next_offset) == (14, 15)
        assert harness.bodies() == expected[1:]
        assert harness.store.log.epochs == [(0, 0)]
    assert failures > 4


def test_appends_work_again_once_descriptors_are_free(make_harness: Callable[..., Any]) -> None:
    """Appends are refused while no file can be opened. Later appends use one new epoch, and the directory is synced
    before a confirm.
    """
    for number in range(1, 30):
        harness = make_harness(segment_size_bytes=500)
        fill(harness, turns=2)
        harness.restart()
        calls = 0
        waits: list[float] = []  # the fsync thread waits, and a descriptor becomes free

        def fault(name: str, path: str, number: int = number, waits: list[float] = waits) -> OSError | None:
            nonlocal calls
            calls += name == "open"
            short = name == "open" and calls >= number and not waits
            return OSError(errno.EMFILE, "Too many open files") if short else None

        harness.filesystem.fault = fault
        harness.filesystem.pause = waits.append
        refused = 0
        for each in range(4):
            waits.clear()
            harness.append(b"%d" % each + b"." * 300)
            harness.end_turn()
            refused += sum(last - first + 1 for first, last in harness.store.take_failed_ranges())
        assert not harness.store.failed
        harness.filesystem.fault = None
        harness.append(b"again")
        harness.end_turn()
        harness.storage.commits.flush()
        harness.run_callbacks()
        assert not any(failed for _, failed in harness.commits[-1:])
        assert harness.bodies()[-1] == b"again"
        assert len(harness.bodies()) == 6 + 4 - refused + 1
        before = harness.bodies()
        harness.restart(harness.filesystem.crashed(number))
        assert harness.bodies() == before
        assert [epoch for epoch, _ in harness.store.log.epochs] == [0, 1]
        if not refused:
            return
    raise AssertionError("appends never went through")


@pytest.mark.parametrize("restarts", ["kill", "clean", "kill clean", "clean kill", "kill clean kill clean"])
def test_transient_bytes_count_once_over_kills_and_clean_stops(harness: Any, restarts: str) -> None:
    """Messages of a transient batch are acked singly before a kill or a clean stop. The byte count of the rest is
    right.
    """
    harness.create_log()
    harness.append(b"p" * 1000)
    harness.append(*[b"t" * 10] * 6, persistent=False)
    harness.append(b"q" * 100)
    harness.store.ack(6, 10)  # this ack is in no file yet, and neither is the ack of its durable neighbour
    harness.store.ack(7, 100)
    harness.end_turn()
    harness.store.ack(2, 10)
    harness.end_turn()
    for number, restart in enumerate(restarts.split(), 2):
        harness.append(b"")
        harness.end_turn()
        if restart == "clean":
            harness.storage.close(clean=True)
        harness.restart()
        assert (harness.store.record_count, harness.store.size_bytes) == (number, 1000)


@pytest.mark.parametrize("rewrite_from", [1 << 20, 200])
def test_byte_count_is_right_after_any_restarts(
    make_harness: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, rewrite_from: int
) -> None:
    """Durable and transient messages are acked in any order, over kills, clean stops and rewrites of `.settled`."""
    monkeypatch.setattr("amqpd.storage.log.segment.REWRITE_FROM", rewrite_from)
    for seed in range(40):
        chance = random.Random(seed)
        harness = make_harness(segment_size_bytes=chance.choice((1 << 26, 3000, 1500)))
        store = harness.create_log()
        live: dict[int, int] = {}
        kept: set[int] = set()
        for _ in range(chance.randint(1, 4)):
            for _ in range(chance.randint(1, 6)):
                for _ in range(chance.randint(1, 12)):
                    body = b"x" * chance.randint(0, 50)
                    persistent = chance.random() < 0.5
                    (offset,) = harness.append(body, persistent=persistent)
                    live[offset] = len(body)
                    if persistent:
                        kept.add(offset)
                for part in (0.3, 0.6):
                    if chance.random() < 0.7:
                        harness.end_turn()
                    for offset in [each for each in live if chance.random() < part]:
                        store.ack(offset, live.pop(offset))
                assert (store.record_count, store.size_bytes) == (len(live), sum(live.values())), seed
            harness.end_turn()
            if chance.random() < 0.5:
                harness.storage.close(clean=True)
            store = harness.restart()
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
def test_truncate_acks_drops_ranges_from_the_end_on(
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


def test_description_of_a_killed_process_is_synced(harness: Any) -> None:
    """A power cut soon after a kill could empty it, and confirmed delayed messages then had no exchange any more."""
    harness.create_log()
    harness.append(b"one")
    harness.store.flush_batches()  # the kill comes before the sync
    written = bytes(harness.data("queue.json"))
    harness.restart()
    harness.append(b"two")
    harness.end_turn()
    for seed in range(20):
        after = harness.filesystem.crashed(seed)
        assert bytes(after._get(f"{harness.directory}/queue.json").data) == written


def test_deliveries_are_marked_after_a_power_cut_and_two_kills(harness: Any) -> None:
    """The second start assumed a mark that covers everything, did not write it, and delivered below it."""
    harness.create_log()
    harness.append(b"one", b"two")
    harness.end_turn()
    harness.restart(harness.filesystem.crashed(1), boot_id="2" * 32)
    harness.append(b"three", b"four")
    harness.end_turn()
    # Another log was not opened, so the next start also counts as one after the power cut.
    harness.filesystem.replace_file("/data/boot-id", b"1" * 32 + b"\n", sync=True)
    store = harness.restart()
    assert harness.storage.power_cut
    assert not store.dirty, "no turn is due that would write it, and ticks would wait for one"
    store.mark_delivered(2)
    harness.end_turn()
    store = harness.restart()
    assert not harness.storage.power_cut
    assert harness.offsets()[-1] == 3
    assert store.redelivered(2)
