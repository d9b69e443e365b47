"""The journal: one sync for a commit of many logs, and every confirmed message after a power cut."""

from __future__ import annotations

import errno
import logging
import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from simulated_filesystem import SimulatedClock, SimulatedFileSystem

from amqpd.storage.filesystem import FileSystem
from amqpd.storage.journal import (
    BLOCK_SIZE,
    KEY_SIZE,
    Journal,
    JournalFrame,
    decode_frame,
    encode_frame,
    frame_size,
    read_journal,
)
from amqpd.storage.local_log import LocalLog
from amqpd.storage.log.checkpoint import FORMAT_WITH_JOURNAL, encode_format, read_high_watermark
from amqpd.storage.log.record import RecordRoute
from amqpd.storage.log.writer import _cut_file
from amqpd.storage.retention_policy import CleanerPolicy, RetentionPolicy
from amqpd.storage.storage import Storage
from amqpd.storage.sync_job import SyncBatch, SyncPart

ROUTE = RecordRoute(b"", b"key")
DURABLE = b"\x10\x00\x02"
KEY = bytes(range(KEY_SIZE))
BLOCKS = 10  # of the journal: two for keys, four in each half
NAMES = ("a", "b", "c")

Fault = Callable[[str, str], OSError | None]


class Room:
    """A storage with a small journal, which commits of two logs use. `confirmed`: bodies of each queue."""

    def __init__(
        self, filesystem: SimulatedFileSystem, boot: int = 1, *, size_bytes: int = BLOCKS * BLOCK_SIZE
    ) -> None:
        self.filesystem = filesystem
        self.confirmed: dict[str, list[bytes]] = {}
        self.failed: set[str] = set()
        self.clock = SimulatedClock()
        self._posted: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._waiting: list[tuple[int, str, bytes]] = []
        self.storage = Storage(
            "/data",
            post=lambda function, *arguments: self._posted.append((function, arguments)),
            clock=self.clock,
            filesystem=filesystem,
            boot_id=f"{boot:032x}",
            inline=True,
            journal_size_bytes=size_bytes,
            journal_from=2,
        )
        self.storage.commits.on_commit = self._committed
        self.stores: dict[str, LocalLog] = {}

    def _committed(self, generation: int, failed: list[LocalLog]) -> None:
        self.failed |= {store.name for store in failed}
        for number, name, body in self._waiting:
            if number <= generation and name not in self.failed:
                self.confirmed.setdefault(name, []).append(body)
        self._waiting = [each for each in self._waiting if each[0] > generation]

    def open(self, *names: str, policy: RetentionPolicy | None = None) -> None:
        for name in names:
            self.stores[name] = self.storage.open_queue("v", name, name, "/", policy)

    def publish(self, name: str, body: bytes, key: bytes = b"key") -> None:
        self._waiting.append((self.storage.commits.generation, name, body))
        self.stores[name].append_parts(RecordRoute(b"", key), DURABLE, body, True)

    def turn(self) -> None:
        self.storage.commits.end_of_turn()
        self.loop()

    def loop(self) -> None:
        while self._posted:
            function, arguments = self._posted.pop(0)
            function(*arguments)

    def commit(self, number: int, *names: str, size: int = 20) -> None:
        """Publish one message to each queue, and commit."""
        for name in names:
            self.publish(name, b"%s%d." % (name.encode(), number) + b"x" * size)
        self.turn()

    def bodies(self, name: str) -> list[bytes]:
        store = self.stores[name]
        store.recover()
        return [record.body for record in store.cursor.read(0, 1 << 30).records]

    def check(self, filesystem: SimulatedFileSystem, boot: int) -> Room:
        """Start again, and require what was confirmed."""
        after = Room(filesystem, boot)
        after.open(*self.stores)
        for name, bodies in self.confirmed.items():
            if name in self.stores:
                found = after.bodies(name)
                assert found[: len(bodies)] == bodies, f"queue {name}: {len(found)} of {len(bodies)}"
                assert not after.stores[name].lost
        return after


def started(filesystem: SimulatedFileSystem | None = None) -> Room:
    """A room whose journal exists, with three queues of a message each."""
    room = Room(filesystem if filesystem is not None else SimulatedFileSystem())
    room.open(*NAMES)
    for number in range(3):
        room.commit(number, *NAMES)
    assert room.storage.journal.usable
    return room


def syncs(room: Room) -> list[tuple[str, str]]:
    return [call for call in room.filesystem.calls if call[0] in {"fdatasync", "syncfs", "fsync_dir"}]


@pytest.fixture
def room() -> Room:
    return started()


def bare_crash(filesystem: SimulatedFileSystem) -> SimulatedFileSystem:
    """A power cut that loses everything that was not synced."""

    class Never(random.Random):
        def random(self) -> float:
            return 1.0

        def randrange(self, *_: Any) -> int:
            return 0

    import simulated_filesystem

    after = SimulatedFileSystem()
    after._root = simulated_filesystem._survivor(filesystem._root, Never())
    return after


def test_commit_of_many_logs_is_one_sync(room: Room) -> None:
    room.filesystem.calls.clear()
    room.commit(9, *NAMES)
    assert syncs(room) == [("fdatasync", "/data/journal.swap")]  # the path under which the file was created
    assert all(len(bodies) == 4 for bodies in room.confirmed.values())


def test_commit_of_one_log_does_not_use_the_journal(room: Room) -> None:
    room.commit(8, "a")
    room.filesystem.calls.clear()
    frames = room.storage.journal.frame_count
    room.commit(9, "a")
    assert [call for call, _ in syncs(room)] == ["fdatasync"]
    assert syncs(room)[0][1].endswith(".log")
    assert room.storage.journal.frame_count == frames


def test_start_after_a_power_cut_restores_what_the_logs_lost(room: Room) -> None:
    for number in range(10, 14):
        room.commit(number, *NAMES, size=300)
    crashed = bare_crash(room.filesystem)
    log = "/data/vhosts/v/queues/a/00000000000000000000.log"
    assert crashed.size(log) < room.filesystem.size(log), "the log has lost nothing"
    room.check(crashed, 2)


@pytest.mark.parametrize("seed", range(40))
def test_no_power_cut_loses_a_confirmed_message(seed: int) -> None:
    """Torn, missing and zeroed sectors, in logs and journal; then again, in the middle of the next life."""
    chance = random.Random(seed)
    room = started()
    for number in range(10, 10 + chance.randrange(12)):
        names = chance.sample(NAMES, chance.choice((1, 2, 3, 3)))
        room.commit(number, *names, size=chance.choice((10, 700, 3000)))
        if chance.random() < 0.2:
            room.storage.commits.flush()
            room.loop()
    second = room.check(room.filesystem.crashed(seed), 2)
    second.confirmed = {name: second.bodies(name) for name in NAMES}
    for number in range(30, 33):
        second.commit(number, *NAMES, size=50)
    second.check(second.filesystem.crashed(seed + 1), 3)


def test_kill_and_then_a_power_cut_lose_nothing(room: Room) -> None:
    room.commit(10, *NAMES)
    killed = room.check(room.filesystem.killed(), 1)
    room.check(bare_crash(killed.filesystem), 2)


def test_clean_stop_empties_the_journal(room: Room) -> None:
    room.commit(10, *NAMES)
    room.storage.close(clean=True)
    filesystem = bare_crash(room.filesystem)
    filesystem.calls.clear()
    after = room.check(filesystem, 1)
    assert after.storage.journal.usable
    assert ("syncfs", "") not in filesystem.calls, "the start had something to restore"


def test_both_halves_are_used_again_and_again(room: Room) -> None:
    for number in range(40):
        room.commit(number, *NAMES, size=900)
    assert room.storage.journal.sequence > 4
    room.check(bare_crash(room.filesystem), 2)


def test_half_is_not_used_again_before_the_logs_are_synced(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above see it: without this rule a power cut loses messages."""
    monkeypatch.setattr(Journal, "needs_background_sync", False)
    for number in range(40):
        room.commit(number, *NAMES, size=900)
    with pytest.raises(AssertionError, match="queue a"):
        room.check(bare_crash(room.filesystem), 2)


def test_commit_larger_than_a_half_syncs_the_logs(room: Room) -> None:
    frames = room.storage.journal.frame_count
    room.commit(10, *NAMES, size=4 * BLOCK_SIZE)
    assert room.storage.journal.frame_count == frames
    room.check(bare_crash(room.filesystem), 2)


def test_segment_roll_in_the_journal(room: Room) -> None:
    for store in room.stores.values():
        store.log.segment_size_bytes = 1000
    for number in range(10, 20):
        room.commit(number, *NAMES, size=200)
    assert len(room.stores["a"].log.segments) > 2
    for seed in range(10):
        room.check(room.filesystem.crashed(seed), 2)


def test_deleted_queue_does_not_return(room: Room) -> None:
    room.commit(10, *NAMES)
    room.storage.retire_queue(room.stores.pop("b"), lambda: None)
    room.loop()
    after = room.check(bare_crash(room.filesystem), 2)
    assert "b" not in after.filesystem.listdir("/data/vhosts/v/queues")


def test_removed_segment_does_not_return(room: Room) -> None:
    for store in room.stores.values():
        store.log.segment_size_bytes = 500
    for number in range(10, 16):
        room.commit(number, *NAMES, size=200)
    settled = room.stores["a"]
    for offset in range(int(settled.next_offset) - 1):
        settled.ack(offset, 0)
    room.storage.commits.flush()
    room.loop()
    assert settled.log.segments[0].base > 0
    room.confirmed["a"] = room.confirmed["a"][-1:]
    room.check(bare_crash(room.filesystem), 2)


def test_published_high_watermark_is_not_ahead_of_the_synced_log(room: Room) -> None:
    """External readers know no journal."""
    store = room.stores["a"]
    path = f"{store.directory}/high-watermark"
    room.commit(10, *NAMES)
    store.log.publish()
    safe = bare_crash(room.filesystem).size(f"{store.directory}/00000000000000000000.log")
    published = read_high_watermark(room.filesystem, path)
    assert 0 < published < store.high_watermark
    assert safe < room.filesystem.size(f"{store.directory}/00000000000000000000.log")
    room.clock.now_ms += 1000  # the logs are synced behind the next commit
    room.commit(11, *NAMES)
    store.log.publish()
    assert read_high_watermark(room.filesystem, path) == store.high_watermark - 1


# -- damage


@pytest.mark.parametrize("step", [97, pytest.param(1, marks=pytest.mark.slow)])
def test_damage_at_any_byte_is_no_message_and_no_failure(step: int, caplog: pytest.LogCaptureFixture) -> None:
    """A wrong byte in the journal after a power cut. The log says so, except if the last frame looks torn."""
    room = started()
    for number in range(10, 13):
        room.commit(number, *NAMES)
    crashed = bare_crash(room.filesystem)
    data = crashed.read_file("/data/journal")
    last = max(place for place in range(0, len(data), BLOCK_SIZE) if decode_frame(data, place, data[4:20]))
    caplog.set_level(logging.ERROR)
    missing = 0
    for place in [place for place in range(len(data)) if data[place]][::step]:
        copy = crashed.killed()
        copy._get("/data/journal").data[place] ^= 0x40
        caplog.clear()
        after = Room(copy, 2)
        after.open(*NAMES)
        for name, bodies in room.confirmed.items():
            found = after.bodies(name)
            assert found == bodies[: len(found)]
            assert len(found) >= 2, "what the log has was lost"
            missing += len(found) < len(bodies)
            assert found == bodies or place >= last or "is damaged" in caplog.text, place
        after.commit(20, *NAMES)
        assert len(after.confirmed["a"]) == 1
    assert missing, "no byte of the journal was needed"


def test_one_damaged_key_block_costs_nothing(room: Room) -> None:
    for place in (0, (BLOCKS - 1) * BLOCK_SIZE):
        copy = bare_crash(room.filesystem)
        copy._get("/data/journal").data[place + 9] ^= 1
        room.check(copy, 2)


def test_journal_without_a_key_is_replaced(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    copy = bare_crash(room.filesystem)
    for place in (0, (BLOCKS - 1) * BLOCK_SIZE):
        copy._get("/data/journal").data[place + 9] ^= 1
    after = Room(copy, 2)
    assert "nothing in it can be read" in caplog.text
    after.open(*NAMES)
    for number in range(3):
        after.commit(number, *NAMES)
    assert after.storage.journal.frame_count > 0
    third = Room(bare_crash(copy), 3)
    third.open(*NAMES)
    assert third.bodies("a")[-3:] == after.confirmed["a"]


def test_frame_is_whole_or_nothing() -> None:
    frame = encode_frame(KEY, 3, 7, [(b"vhosts/v/queues/a/0.log", 99, [b"some", b" bytes"])])
    read = decode_frame(frame, 0, KEY)
    assert read is not None
    assert (read.sequence, read.number, read.entries) == (3, 7, [("vhosts/v/queues/a/0.log", 99, b"some bytes")])
    assert len(frame) == frame_size([(b"vhosts/v/queues/a/0.log", 99, [b"some bytes"])]) == BLOCK_SIZE
    used = len(frame.rstrip(b"\x00"))
    for place in range(used):
        wrong = bytearray(frame)
        wrong[place] ^= 1
        assert decode_frame(bytes(wrong), 0, KEY) is None, place
    assert decode_frame(frame[: used - 1], 0, KEY) is None
    assert decode_frame(frame, 0, bytes(KEY_SIZE)) is None, "a frame with another key"


def test_body_that_looks_like_a_frame_is_none(room: Room) -> None:
    """A torn frame is searched block by block; its messages must not be taken for frames."""
    forged = encode_frame(KEY, 1 << 40, 0, [(b"vhosts/v/queues/a/00000000000000000000.log", 0, [b"forged"])])
    room.commit(10, *NAMES)
    room.publish("a", forged * 2)
    room.commit(11, "b", "c")
    crashed = bare_crash(room.filesystem)
    journal = crashed._get("/data/journal").data
    place = journal.find(b"aqj1", journal.find(forged[:4] + forged[8:40]) - 2 * BLOCK_SIZE)
    journal[place + 4] ^= 1
    after = Room(crashed, 2)
    assert after.storage.journal.sequence < 1 << 40
    after.open("a")
    assert b"forged" not in after.bodies("a")


# -- failures


def failing(room: Room, fault: Fault) -> None:
    room.filesystem.fault = fault


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_failed_write_of_the_journal_syncs_the_logs(room: Room, call: str, number: int) -> None:
    failing(room, lambda name, path: OSError(number, "bad") if name == call and "journal" in path else None)
    room.commit(10, *NAMES)
    room.filesystem.fault = None
    assert not room.failed
    assert not room.storage.journal.usable
    assert all(len(bodies) == 4 for bodies in room.confirmed.values())
    room.commit(11, *NAMES)
    room.check(bare_crash(room.filesystem), 2)


def test_log_whose_later_sync_fails_is_restored_at_the_next_start(room: Room) -> None:
    """Its messages were confirmed. This process does not trust the log any more, and the journal is kept."""
    room.commit(10, *NAMES)
    bad = f"{room.stores['a'].directory}/"

    def fault(name: str, path: str) -> OSError | None:
        wrong = name == "syncfs" or (name == "fdatasync" and path.startswith(bad))
        return OSError(errno.EIO, "bad") if wrong else None

    failing(room, fault)
    room.commit(11, "a")
    room.filesystem.fault = None
    assert room.failed == {"a"}
    assert room.stores["a"].high_watermark == 2, "the offset did not move back to what is synced"
    room.commit(12, "b", "c")
    assert len(room.confirmed["b"]) == 5
    room.storage.close(clean=True)
    room.check(bare_crash(room.filesystem), 2)


def test_failed_sync_behind_the_commits_fails_its_log_only(room: Room) -> None:
    room.commit(10, *NAMES)
    bad = f"{room.stores['a'].directory}/"
    failing(room, lambda name, path: OSError(errno.EIO, "") if name == "fdatasync" and path.startswith(bad) else None)
    room.clock.now_ms += 1000  # the sync is due
    room.commit(11, *NAMES)
    room.filesystem.fault = None
    assert room.failed == {"a"}
    assert not room.storage.journal.usable
    room.commit(12, "b", "c")
    assert len(room.confirmed["b"]) == 6
    for seed in range(5):
        room.check(room.filesystem.crashed(seed), 2)


def test_start_writes_also_what_the_page_cache_has(room: Room) -> None:
    """After a failed sync the kernel takes the pages for clean, so only another write brings them to the disk."""
    room.commit(10, *NAMES)
    killed = room.filesystem.killed()
    Room(killed, 1)
    written = {path for call, path in killed.calls if call == "pwrite"}
    assert {f"{room.stores[name].directory}/00000000000000000000.log" for name in NAMES} <= written


def test_journal_is_kept_if_the_disk_cannot_be_synced_before_it_is_emptied(room: Room) -> None:
    """The descriptor reports the error once, so a later sync of the disk would seem to succeed."""
    room.commit(10, *NAMES)
    failing(room, lambda name, path: OSError(errno.EIO, "bad") if name == "syncfs" else None)
    with pytest.raises(OSError, match="bad"):
        room.storage._committer.empty_journal()
    room.filesystem.fault = None
    assert room.storage.journal.stopped
    room.check(bare_crash(room.filesystem), 2)


def test_journal_gets_no_bytes_that_were_cut_off(room: Room) -> None:
    """A full disk cuts off the batches of a transaction. Later bytes take their place, and their number is equal."""
    log = room.stores["a"].log
    file = log.segments[-1].open_log()
    size = log.segments[-1].size
    log.unsynced.capture(file, size, [b"kept"], 4)
    log.unsynced.add_log_file(file)
    log.unsynced.capture(file, size + 4, [b"cut off"], 7)
    _cut_file(log, file, size + 4)
    part = SyncPart("a")
    part.files = [file]
    log.unsynced.take_captured(part, size + 4 + 7)
    assert part.journal_path == ""


def test_bytes_kept_for_the_journal_are_bounded(room: Room) -> None:
    """A disk that is slow to sync makes large groups."""
    room.storage.context.capture.bytes_max = 3000
    room.commit(9, *NAMES)
    room.storage.commits._job = SyncBatch(0)  # the fsync thread is busy
    for number in range(10, 20):
        room.commit(number, *NAMES, size=200)
        kept = [part for store in room.stores.values() for part in store.log.unsynced._captured]
        assert sum(map(len, kept)) <= 3000
    room.storage.commits._job = None
    room.commit(20, *NAMES)
    frames = room.storage.journal.frame_count
    room.commit(21, *NAMES)
    assert room.storage.journal.frame_count == frames + 1
    assert all(len(bodies) == 16 for bodies in room.confirmed.values())
    room.check(bare_crash(room.filesystem), 2)


def test_interrupted_creation_leaves_no_file() -> None:
    filesystem = SimulatedFileSystem()
    Room(filesystem).storage.close(clean=True)
    filesystem.close(filesystem.open("/data/journal.swap", os.O_RDWR | os.O_CREAT))
    Room(filesystem, size_bytes=0)
    assert not filesystem.exists("/data/journal.swap")


def test_no_space_for_a_journal_is_no_failure() -> None:
    full = lambda name, path: OSError(errno.ENOSPC, "full") if "journal" in path and name == "pwrite" else None  # noqa: E731
    filesystem = SimulatedFileSystem(fault=full)
    room = Room(filesystem)
    room.open(*NAMES)
    for number in range(4):
        room.commit(number, *NAMES)
    assert not room.storage.journal.usable
    assert not filesystem.exists("/data/journal")
    assert not filesystem.exists("/data/journal.swap")
    room.check(bare_crash(filesystem), 2)


def test_journal_needs_free_disk_space() -> None:
    room = Room(SimulatedFileSystem(capacity=40 * BLOCK_SIZE))
    room.open(*NAMES)
    for number in range(4):
        room.commit(number, *NAMES)
    assert not room.filesystem.exists("/data/journal")


def test_start_fails_if_a_log_cannot_be_restored(room: Room) -> None:
    """Otherwise new messages would get the offsets of the missing ones."""
    room.commit(10, *NAMES)
    crashed = bare_crash(room.filesystem)
    crashed.fault = lambda name, path: OSError(errno.EIO, "bad") if name == "pwrite" and path.endswith(".log") else None
    with pytest.raises(OSError, match="logs cannot be restored from it: bad: '/data/journal'"):
        Room(crashed, 2)
    crashed.fault = None
    room.check(crashed, 2)


# -- settings, format, compaction


def test_journal_is_removed_when_it_is_off(room: Room) -> None:
    room.commit(10, *NAMES)
    crashed = bare_crash(room.filesystem)
    off = Room(crashed, 2, size_bytes=0)
    assert not crashed.exists("/data/journal")
    off.open(*NAMES)
    assert len(off.bodies("a")) == 4


def test_directory_gets_the_format_when_the_journal_is_created() -> None:
    room = Room(SimulatedFileSystem())
    room.open(*NAMES)
    room.commit(0, "a")
    assert room.filesystem.read_file("/data/format") == encode_format()
    for number in range(1, 5):
        room.commit(number, *NAMES)
    assert room.filesystem.read_file("/data/format") == encode_format(FORMAT_WITH_JOURNAL)


def test_compacted_segment_is_not_overwritten_from_the_journal() -> None:
    room = Room(SimulatedFileSystem())
    room.open(*NAMES, policy=RetentionPolicy(file_delete_delay_ms=0, compaction=CleanerPolicy(min_dirty_ratio=0.0)))
    for store in room.stores.values():
        store.log.segment_size_bytes = 1500
    for number in range(30):
        room.commit(number, *NAMES, size=100)
    room.storage.maintain()
    room.loop()
    assert len(room.bodies("a")) < 30, "nothing was compacted"
    for seed in range(8):
        for filesystem in (room.filesystem.crashed(seed), room.filesystem.killed()):
            after = Room(filesystem, 2)
            after.open(*NAMES)
            found = after.bodies("a")
            assert found[-1] == room.confirmed["a"][-1]
            assert not after.stores["a"].lost


def frames_in(filesystem: SimulatedFileSystem) -> list[JournalFrame]:
    fd = filesystem.open("/data/journal", os.O_RDWR)
    return read_journal(filesystem, fd, (BLOCKS - 2) // 2 * BLOCK_SIZE).frames


@pytest.mark.parametrize("commits", [1, 5])
def test_torn_frame_over_an_empty_one_brings_no_older_frames_back(room: Room, commits: int) -> None:
    """A half has four frames here. Those behind the torn one may be about a segment replaced since."""
    for number in range(10, 22):
        room.commit(number, *NAMES)
    room.storage._committer.empty_journal()
    assert not frames_in(room.filesystem)
    for number in range(30, 30 + commits):
        room.commit(number, *NAMES)
    frames = frames_in(room.filesystem)
    assert len(frames) == commits
    half = room.storage.journal.sequence % 2
    room.filesystem._get("/data/journal").data[BLOCK_SIZE + half * (BLOCKS - 2) // 2 * BLOCK_SIZE] ^= 1
    assert len(frames_in(room.filesystem)) == commits - 1


def test_journal_that_was_emptied_in_the_page_cache_alone_is_emptied_by_the_next_start(room: Room) -> None:
    """Else a power cut after that start brings the frames back, and the start may have put a segment in place."""
    room.commit(10, *NAMES)
    failing(room, lambda name, path: OSError(errno.EIO, "") if name == "fdatasync" and "journal" in path else None)
    with pytest.raises(OSError):
        room.storage._committer.empty_journal()
    killed = room.filesystem.killed()
    assert not frames_in(killed)
    assert frames_in(bare_crash(killed))
    Room(killed, 1)
    assert not frames_in(bare_crash(killed))


def test_bytes_written_at_a_position_stay_where_they_are(tmp_path: Any) -> None:
    filesystem = FileSystem()
    fd = filesystem.open(f"{tmp_path}/file", os.O_RDWR | os.O_CREAT)
    filesystem.pwrite_whole(fd, b"later", 3)
    filesystem.pwrite_whole(fd, b"abc", 0)
    filesystem.close(fd)
    assert filesystem.read_file(f"{tmp_path}/file") == b"abclater"
