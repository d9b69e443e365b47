"""The log of committed offsets: encoding, kills, compaction, a disk that refuses. No broker."""

from __future__ import annotations

import errno
import shutil
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpd.kafka_server import committed_offsets, compacted_log
from amqpd.kafka_server.committed_offsets import (
    CommittedOffset,
    CommittedOffsets,
    NewOffset,
    OffsetKey,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from amqpd.kafka_server.compacted_log import RECORDS_AT_ONCE, RETRY_MS, LogHost, LogRecord
from amqpd.kafka_server.share_states import ShareStates, StoredState
from amqpd.storage.filesystem import FileSystem
from amqpd.storage.storage import Storage

ID = bytes(range(16))
TEXT = st.text(max_size=20)


@given(TEXT, TEXT, TEXT, st.integers(-(1 << 31), (1 << 31) - 1))
def test_key_is_decoded_as_it_was_encoded(vhost: str, group: str, topic: str, partition: int) -> None:
    key = OffsetKey(vhost, group, topic, partition)
    assert decode_key(encode_key(key)) == key


@given(st.integers(-1, (1 << 63) - 1), st.integers(-1, (1 << 31) - 1), TEXT)
def test_value_is_decoded_as_it_was_encoded(offset: int, epoch: int, metadata: str) -> None:
    value = CommittedOffset(offset, epoch, metadata, 1234, ID)
    assert decode_value(encode_value(value)) == value


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    decode_key(data)
    decode_key(b"\x01" + data)
    decode_value(data)
    decode_value(b"\x01" + data)


@pytest.mark.parametrize("character", ["a", "é", "\u20ac", "\U0001f600"])
def test_size_covers_the_memory_of_the_metadata(character: str) -> None:
    metadata = character * committed_offsets.METADATA_MAX
    assert CommittedOffset(1, -1, metadata, 1234, ID).size_bytes >= sys.getsizeof(metadata)


class Disk(FileSystem):
    """A file system that can refuse writes or syncs of the offsets' log."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses_writes = False
        self.refuses_syncs = False

    def fdatasync(self, fd: int) -> None:
        if self.refuses_syncs:
            raise OSError(errno.EIO, "bad disk")
        super().fdatasync(fd)

    def write(self, fd: int, parts: Any) -> Any:
        if self.refuses_writes:
            raise OSError(errno.ENOSPC, "no space")
        return super().write(fd, parts)

    def writev(self, fd: int, parts: Any) -> Any:
        if self.refuses_writes:
            raise OSError(errno.ENOSPC, "no space")
        return super().writev(fd, parts)


class Turn:
    """The end of a loop turn, without a loop."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def schedule(self) -> None:
        """Nothing: `Lab.run` ends each turn."""


class Lab:
    """The offsets of a data directory, with threads replaced by inline work."""

    def __init__(self, path: Path, disk: FileSystem | None = None) -> None:
        self.soon: deque[Callable[[], object]] = deque()
        self.now = 0
        self.loads = 0
        self.deleted: set[bytes] = set()  # ids of streams
        self.storage = Storage(path, post=self._post, inline=True, filesystem=disk)
        self.storage.commits.on_commit = lambda generation, failed: None
        turn: Any = Turn(self.storage)
        self.offsets = CommittedOffsets(
            LogHost(self.storage, turn, self.soon.append, self.soon.append, lambda: self.now),
            self._loaded,
            lambda offsets: [each for each in offsets if each[1].stream_id not in self.deleted],
        )
        self.offsets.load()
        self.run()

    def _post(self, call: Callable[..., object], *arguments: object) -> None:
        self.soon.append(lambda: call(*arguments))

    def _loaded(self) -> None:
        self.loads += 1

    def run(self) -> None:
        self.storage.commits.end_of_turn()
        while self.soon:
            self.soon.popleft()()
            self.storage.commits.end_of_turn()

    def commit(self, group: str, offset: int | None, topic: str = "t") -> bool:
        value = None if offset is None else CommittedOffset(offset, -1, "", 1, ID)
        answers: list[bool] = []
        self.offsets.change([(OffsetKey("v", group, topic, 0), value)], answers.append)
        assert not answers or not answers[0]  # not before the sync
        self.run()
        assert len(answers) == 1
        return answers[0]

    def keys(self) -> list[OffsetKey]:
        groups = self.offsets.groups("v")
        return [OffsetKey("v", group, *place) for group, offsets in groups.items() for place in offsets]

    def content(self) -> dict[str, int]:
        return {name: each[("t", 0)].offset for name, each in self.offsets.groups("v").items()}


def test_answered_commits_survive_a_kill_and_a_stop(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    assert lab.loads == 1
    for number in range(50):
        assert lab.commit(f"g{number % 7}", number)
    assert lab.commit("g3", None)
    expected = lab.content()
    assert "g3" not in expected
    for clean in (False, True, False):
        lab.storage.close(clean=clean)
        lab = Lab(tmp_path)
        assert lab.offsets.is_loaded
        assert lab.content() == expected
    lab.storage.close(clean=True)


def test_a_log_of_many_slices_is_read_completely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(tmp_path)
    for number in range(200):
        assert lab.commit(f"g{number}", number)
    lab.storage.close(clean=True)
    monkeypatch.setattr(compacted_log, "SLICE_BYTES", 200)
    lab = Lab(tmp_path)
    assert lab.content() == {f"g{number}": number for number in range(200)}
    lab.storage.close(clean=True)


def test_compaction_keeps_the_last_offset_of_each_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacted_log, "SEGMENT_BYTES", 4096)
    lab = Lab(tmp_path)
    for number in range(600):
        assert lab.commit(f"g{number % 3}", number)
    for _ in range(3):
        lab.storage.maintain()
        lab.run()
    store = lab.offsets._store
    assert store is not None
    lab.storage.set_policy(store, replace(store.log.policy, file_delete_delay_ms=0))  # type: ignore[type-var]
    lab.storage.maintain()
    lab.run()
    assert store.record_count < 200
    lab.storage.close(clean=True)
    lab = Lab(tmp_path)
    assert lab.content() == {"g0": 597, "g1": 598, "g2": 599}
    lab.storage.close(clean=True)


def test_full_disk_refuses_commits_and_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    disk = Disk()
    lab = Lab(tmp_path, disk)
    assert lab.commit("g", 1)
    disk.refuses_writes = True
    assert not lab.commit("g", 2)
    assert not lab.commit("new", 3)
    assert lab.content() == {"g": 1}
    disk.refuses_writes = False
    assert lab.commit("g", 4)
    lab.storage.close(clean=False)
    lab = Lab(tmp_path)
    assert lab.content() == {"g": 4}
    lab.storage.close(clean=True)


@pytest.mark.parametrize("count", [1, 2, RECORDS_AT_ONCE, RECORDS_AT_ONCE + 1, 1000])
def test_full_disk_refuses_commits_of_any_size(tmp_path: Path, count: int) -> None:
    """Only the marker behind many records was asked about: they were answered as synced, and absent after a start."""
    disk = Disk()
    lab = Lab(tmp_path, disk)
    assert lab.commit("g", 1)
    answers: list[bool] = []
    calls: list[int] = []
    disk.refuses_writes = True
    value = CommittedOffset(2, -1, "", 1, ID)
    lab.offsets.change([(OffsetKey("v", "g", "t", number), value) for number in range(count)], answers.append)
    lab.offsets.after_changes(lambda: calls.append(len(answers)))
    lab.run()
    assert (answers, calls, lab.content()) == ([False], [1], {"g": 1})
    disk.refuses_writes = False
    assert lab.commit("h", 3)
    for _ in range(2):
        assert (lab.content(), len(lab.keys())) == ({"g": 1, "h": 3}, 2)
        lab.storage.close(clean=False)
        lab = Lab(tmp_path)
    lab.storage.close(clean=True)


def test_full_disk_holds_up_nothing_that_waits_for_earlier_changes(tmp_path: Path) -> None:
    disk = Disk()
    lab = Lab(tmp_path, disk)
    answers: list[str] = []
    disk.refuses_writes = True
    lab.offsets.change(pending(1, 0, 1), lambda safe: answers.append(f"changed {safe}"))
    lab.offsets.after_changes(lambda: answers.append("called"))
    lab.run()
    assert answers == ["changed False", "called"]
    disk.refuses_writes = False
    lab.storage.close(clean=True)


@pytest.mark.parametrize("count", [3, 1000])
def test_a_change_that_cannot_be_encoded_does_not_hold_up_others(tmp_path: Path, count: int) -> None:
    lab = Lab(tmp_path)
    values = [CommittedOffset(1 << 64 if number == 2 else 1, -1, "", 1, ID) for number in range(count)]
    changes = [(OffsetKey("v", "bad", "t", number), value) for number, value in enumerate(values)]
    answers: list[bool] = []
    with pytest.raises(struct.error):  # noqa: PT012  # at once, or in a later turn
        lab.offsets.change(changes, answers.append)
        lab.offsets.change([(OffsetKey("v", "g", "t", 0), CommittedOffset(1, -1, "", 1, ID))], answers.append)
        lab.run()
    lab.run()
    assert lab.commit("g", 2)
    assert len(answers) == (count > 3)
    lab.storage.close(clean=False)
    lab = Lab(tmp_path)
    assert lab.content() == {"g": 2}
    lab.storage.close(clean=True)


def test_a_stop_drops_changes_that_are_not_appended_yet(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    assert lab.commit("g", 1)
    value = CommittedOffset(2, -1, "", 1, ID)
    answers: list[bool] = []
    lab.offsets.change([(OffsetKey("v", "large", "t", number), value) for number in range(1000)], answers.append)
    lab.offsets.change([(OffsetKey("v", "g", "t", 0), value)], answers.append)
    lab.offsets.stop()
    lab.storage.close(clean=True)
    lab.run()
    assert not answers
    lab = Lab(tmp_path)
    assert lab.content() == {"g": 1}
    lab.storage.close(clean=True)


def test_the_offsets_of_a_transaction_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committed_offsets, "PENDING_MAX", 2)
    lab = Lab(tmp_path)
    value = CommittedOffset(1, -1, "", 1, ID)
    some = [(OffsetKey("v", "g", "t", number), value) for number in range(3)]
    assert not lab.offsets.has_pending_room(7, some)
    lab.offsets.add_pending(7, some[:2], lambda _: None)
    assert lab.offsets.has_pending_room(7, some[:2])
    assert not lab.offsets.has_pending_room(7, some[2:])
    assert lab.offsets.has_pending_room(8, some[2:])
    lab.storage.close(clean=True)


def test_failed_sync_refuses_commits_until_the_next_start(tmp_path: Path) -> None:
    disk = Disk()
    lab = Lab(tmp_path, disk)
    assert lab.commit("g", 1)
    disk.refuses_syncs = True
    assert not lab.commit("g", 2)
    disk.refuses_syncs = False
    assert not lab.commit("g", 3)
    assert lab.content() == {"g": 1}
    lab.storage.close(clean=False)
    lab = Lab(tmp_path)
    assert lab.content()["g"] in (1, 2)  # the refused one may be there
    assert lab.commit("g", 4)
    assert lab.content() == {"g": 4}
    lab.storage.close(clean=True)


def test_many_removals_are_spread_over_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committed_offsets, "REMOVALS_PER_TURN", 10)
    lab = Lab(tmp_path)
    for number in range(35):
        assert lab.commit(f"g{number}", number)
    lab.offsets.remove_later(lab.keys())
    lab.offsets.remove_later(lab.keys())
    assert len(lab.content()) == 35
    lab.run()
    assert lab.content() == {}
    assert lab.offsets.vhost_ids() == []
    assert lab.offsets.has_room("v", committed_offsets.VHOST_BYTES_MAX)
    lab.storage.close(clean=True)


@pytest.mark.parametrize("is_first", [True, False])
def test_an_offset_committed_while_its_old_one_is_being_removed_stays(tmp_path: Path, is_first: bool) -> None:
    lab = Lab(tmp_path)
    assert lab.commit("a", 1) and lab.commit("b", 1)
    changes = [(OffsetKey("v", "b", "t", 0), CommittedOffset(2, -1, "", 1, ID))]
    answers: list[bool] = []
    if is_first:
        lab.offsets.change(changes, answers.append)  # not synced yet
    lab.offsets.remove_later(lab.keys())
    if not is_first:
        lab.offsets.change(changes, answers.append)
    lab.run()
    assert (answers, lab.content()) == ([True], {"b": 2})
    lab.storage.close(clean=False)
    lab = Lab(tmp_path)
    assert lab.content() == {"b": 2}
    lab.storage.close(clean=True)


def test_memory_of_a_vhost_is_limited(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    assert lab.commit("g", 1)
    assert not lab.offsets.has_room("v", committed_offsets.VHOST_BYTES_MAX)
    size_bytes = committed_offsets.GROUP_BYTES + committed_offsets.ENTRY_BYTES
    assert lab.offsets.has_room("v", committed_offsets.VHOST_BYTES_MAX - size_bytes)
    assert not lab.offsets.has_room("v", committed_offsets.VHOST_BYTES_MAX - size_bytes + 1)
    assert lab.commit("g", 2, "u")
    size_bytes += committed_offsets.ENTRY_BYTES
    assert lab.offsets.has_room("v", committed_offsets.VHOST_BYTES_MAX - size_bytes)
    assert not lab.offsets.has_room("v", committed_offsets.VHOST_BYTES_MAX - size_bytes + 1)
    assert (lab.offsets.group_bytes("v", "g"), lab.offsets.group_bytes("v", "h")) == (0, committed_offsets.GROUP_BYTES)
    lab.storage.close(clean=True)


def test_log_that_cannot_be_opened_is_tried_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "bad disk")

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "open_system_queue", refuse)
        lab = Lab(tmp_path)
    assert lab.offsets.has_failed and not lab.offsets.is_loaded
    lab.offsets.load()
    assert not lab.offsets.is_loaded
    lab.now += RETRY_MS
    lab.offsets.load()
    lab.run()
    assert lab.offsets.is_loaded and not lab.offsets.has_failed
    lab.storage.close(clean=True)


def add_pending(lab: Lab, producer_id: int, offset: int, topic: str = "t") -> bool:
    """Add an offset of group `g` to a transaction."""
    answers: list[bool] = []
    value = CommittedOffset(offset, -1, "", 1, ID)
    lab.offsets.add_pending(producer_id, [(OffsetKey("v", "g", topic, 0), value)], answers.append)
    lab.run()
    return answers[0]


def complete(lab: Lab, producer_id: int, commits: bool) -> bool:
    answers: list[bool] = []
    lab.offsets.complete("v", "g", producer_id, commits, answers.append)
    lab.run()
    return answers[0]


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("clean", [True, False])
def test_pending_offsets_survive_a_restart_and_end_with_their_transaction(
    tmp_path: Path, commits: bool, clean: bool
) -> None:
    lab = Lab(tmp_path)
    assert lab.commit("g", 1)
    assert add_pending(lab, 7, 5) and add_pending(lab, 8, 9) and add_pending(lab, 7, 6)
    for expected in ({"g": 1}, {"g": 6} if commits else {"g": 1}):
        lab.storage.close(clean=clean)
        lab = Lab(tmp_path)
        assert lab.content() == expected
        assert lab.offsets.is_pending(OffsetKey("v", "g", "t", 0))
        assert not lab.offsets.is_pending(OffsetKey("v", "g", "u", 0))
        assert complete(lab, 7, commits)
    assert lab.offsets.pending_producers() == [("v", "g", 8)]
    assert complete(lab, 8, False)
    assert not lab.offsets.is_pending(OffsetKey("v", "g", "t", 0))
    size_bytes = committed_offsets.GROUP_BYTES + committed_offsets.ENTRY_BYTES
    assert lab.offsets.has_room("v", committed_offsets.VHOST_BYTES_MAX - size_bytes)
    lab.storage.close(clean=True)


def test_a_transaction_ends_with_offsets_that_are_still_being_written(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    assert add_pending(lab, 7, 1)
    answers: list[bool] = []
    for number in (2, 3):
        lab.offsets.add_pending(
            7, [(OffsetKey("v", "g", "t", 0), CommittedOffset(number, -1, "", 1, ID))], answers.append
        )
    assert complete(lab, 7, True)
    assert (answers, lab.content(), lab.offsets.pending_producers()) == ([True] * 2, {"g": 3}, [])
    lab.storage.close(clean=False)
    lab = Lab(tmp_path)
    assert (lab.content(), lab.offsets.pending_producers()) == ({"g": 3}, [])
    lab.storage.close(clean=True)


@pytest.mark.parametrize("ends_meanwhile", [True, False])
def test_offsets_of_a_removed_group_are_removed_from_transactions(tmp_path: Path, ends_meanwhile: bool) -> None:
    """As in Kafka: otherwise the commit would bring the group back."""
    lab = Lab(tmp_path)
    assert lab.commit("g", 1) and add_pending(lab, 7, 2) and add_pending(lab, 8, 3, "u")
    answers: list[bool] = []
    lab.offsets.remove_group("v", "g", answers.append)
    if not ends_meanwhile:
        lab.run()
    assert complete(lab, 7, True)
    assert (answers, lab.content(), lab.offsets.pending_producers()) == ([True], {}, [])
    assert lab.offsets.has_room("v", committed_offsets.VHOST_BYTES_MAX)
    lab.storage.close(clean=False)
    lab = Lab(tmp_path)
    assert (lab.content(), lab.offsets.pending_producers()) == ({}, [])
    lab.storage.close(clean=True)


def pending(offset: int, *partitions: int) -> list[NewOffset]:
    return [(OffsetKey("v", "g", "t", each), CommittedOffset(offset, -1, "", 1, ID)) for each in partitions or (0,)]


@pytest.mark.parametrize("before", [0, 1])
def test_a_removed_group_stays_away_if_its_transaction_commits_meanwhile(tmp_path: Path, before: int) -> None:
    """The offset of the transaction is not synced when both are asked for, as with requests sent without waiting."""
    lab = Lab(tmp_path)
    if before:
        assert lab.commit("g", 1)
    answers: list[str] = []
    lab.offsets.add_pending(7, pending(2), lambda safe: answers.append(f"added {safe}"))
    lab.offsets.complete("v", "g", 7, True, lambda safe: answers.append(f"completed {safe}"))
    lab.offsets.remove_group("v", "g", lambda safe: answers.append(f"removed {safe}"))
    lab.run()
    assert answers == ["added True", "completed True", "removed True"]
    for _ in range(2):
        assert (lab.content(), lab.offsets.pending_producers()) == ({}, [])
        lab.storage.close(clean=False)
        lab = Lab(tmp_path)
    lab.storage.close(clean=True)


def test_a_removed_offset_stays_away_if_its_transaction_commits_meanwhile(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    answers: list[bool] = []
    lab.offsets.add_pending(7, pending(2), answers.append)
    lab.offsets.complete("v", "g", 7, True, answers.append)
    lab.offsets.change([(OffsetKey("v", "g", "t", 0), None)], answers.append)
    lab.run()
    assert answers == [True] * 3
    for _ in range(2):
        assert (lab.content(), lab.offsets.pending_producers()) == ({}, [])
        lab.storage.close(clean=False)
        lab = Lab(tmp_path)
    lab.storage.close(clean=True)


def test_a_removal_that_is_refused_after_a_transaction_has_ended_changes_nothing(tmp_path: Path) -> None:
    """A removal of many offsets is written later than the commit that came before it."""
    disk = Disk()
    lab = Lab(tmp_path, disk)
    partitions = range(committed_offsets.REMOVALS_PER_TURN + 1)
    assert lab.commit("g", 1) and add_pending(lab, 7, 2)
    answers: list[bool] = []
    lab.offsets.complete("v", "g", 7, True, answers.append)
    lab.offsets.change([(OffsetKey("v", "g", "t", each), None) for each in partitions], answers.append)
    lab.storage.commits.end_of_turn()
    while not answers:  # only the commit of the transaction is written
        lab.soon.popleft()()
    disk.refuses_writes = True
    lab.run()
    disk.refuses_writes = False
    assert answers == [True, False]
    assert (lab.content(), lab.offsets.pending_producers()) == ({"g": 2}, [])
    lab.storage.close(clean=True)


def test_offsets_of_a_deleted_stream_do_not_replace_those_of_a_new_one(tmp_path: Path) -> None:
    """As in Kafka, where a deleted topic takes its pending offsets with it."""
    lab = Lab(tmp_path)
    new, key = bytes(16), OffsetKey("v", "g", "t", 0)
    assert add_pending(lab, 7, 100) and add_pending(lab, 7, 5, "other")
    lab.deleted.add(ID)
    answers: list[bool] = []
    lab.offsets.change([(key, CommittedOffset(3, -1, "", 1, new))], answers.append)
    lab.run()
    assert not lab.offsets.is_pending(key, new) and lab.offsets.is_pending(key, ID)
    assert complete(lab, 7, True)
    for _ in range(2):
        assert (lab.content(), lab.keys(), lab.offsets.pending_producers()) == ({"g": 3}, [key], [])
        lab.storage.close(clean=False)
        lab = Lab(tmp_path)
    lab.storage.close(clean=True)


def test_a_large_group_is_removed_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of 100,000 offsets held the loop for 0.3 s."""
    lab = Lab(tmp_path)
    at_once = committed_offsets.REMOVALS_PER_TURN
    lab.offsets.change(pending(1, *range(3 * at_once)), lambda _safe: None)
    lab.offsets.add_pending(7, pending(2, *range(at_once, 4 * at_once)), lambda _safe: None)
    written: list[int] = []
    append = lab.offsets.append

    def counted(count: int, records: Iterable[LogRecord], done: Callable[[bool], None]) -> None:
        written.append(count)
        append(count, records, done)

    monkeypatch.setattr(lab.offsets, "append", counted)
    answers: list[bool] = []
    lab.offsets.remove_group("v", "g", answers.append)
    lab.run()
    assert answers == [True]
    assert max(written) <= 2 * at_once and sum(written) >= 6 * at_once
    assert not lab.offsets.has_group("v", "g") and lab.offsets.has_room("v", committed_offsets.VHOST_BYTES_MAX)
    lab.storage.close(clean=True)


def test_a_group_that_cannot_be_removed_is_answered(tmp_path: Path) -> None:
    disk = Disk()
    lab = Lab(tmp_path, disk)
    assert lab.commit("g", 1)
    disk.refuses_writes = True
    answers: list[bool] = []
    lab.offsets.remove_group("v", "g", answers.append)
    lab.run()
    assert (answers, lab.content()) == ([False], {"g": 1})
    disk.refuses_writes = False
    lab.storage.close(clean=True)


def test_a_removal_that_is_refused_leaves_transactions_as_they_were(tmp_path: Path) -> None:
    disk = Disk()
    lab = Lab(tmp_path, disk)
    assert lab.commit("g", 1) and add_pending(lab, 7, 2)
    disk.refuses_writes = True
    assert not lab.commit("g", None)
    disk.refuses_writes = False
    assert lab.content() == {"g": 1}
    assert complete(lab, 7, True)
    assert lab.content() == {"g": 2}
    lab.storage.close(clean=True)


def test_an_expired_offset_stays_while_a_transaction_has_a_new_one(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    assert lab.commit("g", 1) and add_pending(lab, 7, 2)
    lab.offsets.remove_later(lab.keys())
    lab.run()
    assert lab.content() == {"g": 1}
    assert complete(lab, 7, True)
    assert lab.content() == {"g": 2}
    lab.storage.close(clean=True)


def test_second_completion_does_not_overwrite_a_later_commit(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    assert add_pending(lab, 7, 5)
    assert complete(lab, 7, True)
    assert lab.commit("g", 20)
    assert complete(lab, 7, True)
    assert lab.content() == {"g": 20}
    lab.storage.close(clean=True)


def test_completion_is_whole_or_absent_after_a_torn_write(tmp_path: Path) -> None:
    """The log is cut at each byte of the completion of 80 offsets, as a kill may leave it."""
    lab = Lab(tmp_path / "data")
    for number in range(80):
        assert add_pending(lab, 7, number, f"t{number}")
    (path,) = (tmp_path / "data").glob("**/kafka-offsets/*.log")
    before = path.stat().st_size
    assert complete(lab, 7, True)
    lab.storage.close(clean=False)
    data = path.read_bytes()
    for number, size in enumerate([before, *range(before + 1, len(data), 1501), len(data) - 1, len(data)]):
        copy = Path(shutil.copytree(tmp_path / "data", tmp_path / f"copy{number}"))
        (torn,) = copy.glob("**/kafka-offsets/*.log")
        torn.write_bytes(data[:size])
        (torn.parent / "high-watermark").unlink()
        lab = Lab(copy)
        whole = size == len(data)
        assert len(lab.offsets.of_group("v", "g")) == (80 if whole else 0)
        assert lab.offsets.pending_producers() == ([] if whole else [("v", "g", 7)])
        lab.storage.close(clean=False)


def test_refused_pending_offset_is_not_pending(tmp_path: Path) -> None:
    disk = Disk()
    lab = Lab(tmp_path, disk)
    assert add_pending(lab, 7, 1)
    disk.refuses_writes = True
    assert not add_pending(lab, 8, 2)
    assert not add_pending(lab, 7, 2), "the earlier one stays"
    assert not complete(lab, 7, True)
    disk.refuses_writes = False
    assert lab.offsets.pending_producers() == [("v", "g", 7)]
    assert complete(lab, 7, True)
    assert lab.content() == {"g": 1}
    lab.storage.close(clean=True)


def test_changes_that_came_before_are_visible_to_who_waits_for_them(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    found: list[dict[str, int]] = []
    lab.offsets.after_changes(lambda: found.append(lab.content()))
    assert found == [{}]  # at once
    lab.offsets.change([(OffsetKey("v", "g", "t", 0), CommittedOffset(7, -1, "", 1, ID))], lambda _safe: None)
    lab.offsets.after_changes(lambda: found.append(lab.content()))
    assert len(found) == 1
    lab.run()
    assert found[1:] == [{"g": 7}]
    lab.storage.close(clean=True)


def test_states_of_a_deleted_vhost_are_removed_in_steps(tmp_path: Path) -> None:
    """Share groups have as many states as fit into 64 MiB: 100,000 of them held the loop for two seconds."""
    lab = Lab(tmp_path)
    broker: Any = SimpleNamespace(vhosts={})
    states = ShareStates(lab.offsets, broker)
    written: list[bool] = []
    for number in range(5):
        states.write(OffsetKey("v", f"g{number}", "t", 0), StoredState(bytes(16), b""), written.append)
    lab.run()
    assert written == [True] * 5
    steps = states.remove_void()
    for _ in range(3):
        next(steps)
    lab.run()
    assert len(states._tables["v"]) == 2
    list(states.remove_void())  # another sweep begins
    lab.run()
    assert (states._tables, list(steps)) == ({}, [])
    lab.storage.close(clean=False)
