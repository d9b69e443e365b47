"""The written states of share groups, without a broker."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_committed_offsets import Disk, Lab

from amqpd.kafka_server import share_states
from amqpd.kafka_server.committed_offsets import OffsetKey
from amqpd.kafka_server.share_states import ShareStates, StoredState

OLD, NEW = bytes(16), bytes(range(16))
VHOST: Any = SimpleNamespace(id="v")


def test_a_sweep_removes_void_states_but_none_that_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The streams `a` and `b` are created again, and `a` is used already."""
    monkeypatch.setattr(share_states, "partition_queue", lambda *_: SimpleNamespace(id=NEW.hex()))
    lab = Lab(tmp_path)
    broker: Any = SimpleNamespace(vhosts={"/": VHOST})
    states = ShareStates(lab.offsets, broker)
    answers: list[bool] = []
    for topic in ("a", "b"):
        states.write(OffsetKey("v", "g", topic, 0), StoredState(OLD, b"old"), answers.append)
    lab.run()
    states.write(OffsetKey("v", "g", "a", 0), StoredState(NEW, b"new"), answers.append)
    list(states.remove_void())
    lab.run()
    assert answers == [True] * 3
    assert states.partitions_of(VHOST, "g") == [("a", 0)]
    monkeypatch.setattr(share_states, "partition_queue", lambda *_: SimpleNamespace(id=OLD.hex()))
    assert states.partitions_of(VHOST, "g") == []
    list(states.remove_void())
    lab.run()
    assert states._tables == {}
    lab.storage.close(clean=True)


def test_a_state_that_is_being_written_or_removed_is_found_as_it_will_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_states, "partition_queue", lambda *_: SimpleNamespace(id=NEW.hex()))
    disk = Disk()
    lab = Lab(tmp_path, disk)
    broker: Any = SimpleNamespace(vhosts={"/": VHOST})
    states = ShareStates(lab.offsets, broker)
    key = OffsetKey("v", "g", "a", 0)
    answers: list[bool] = []

    def found() -> bytes:
        state = states.find(VHOST, *key[1:])
        return b"" if state is None else state.snapshot

    states.write(key, StoredState(NEW, b"1"), answers.append)
    lab.run()
    states.write(key, StoredState(NEW, b"2"), answers.append)
    assert found() == b"2"
    states.remove(states.keys_of("v", "g"), answers.append)
    assert (found(), states.groups(VHOST)) == (b"", [])
    states.write(key, StoredState(NEW, b"3"), answers.append)
    assert found() == b"3"
    lab.run()
    assert (found(), answers) == (b"3", [True] * 4)
    disk.refuses_writes = True
    states.remove([key], answers.append)
    lab.run()
    assert (found(), answers[-1]) == (b"3", False)
    lab.storage.close(clean=False)
