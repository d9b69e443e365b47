"""Recovery of lost metadata: queues are restored from their directories, deleted queues stay deleted."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from amqpd.broker.vhost.recovery import RecoveryFindings, reconcile
from amqpd.protocol.field_table import encode_table
from amqpd.storage.metadata.rows import BindingRow, Delete, DeleteBindings, PermissionRow, Put, QueueRow, VhostRow
from amqpd.storage.metadata.store import MetadataState
from amqpd.storage.queue_json import DESCRIPTION, Description, describe, read_description
from amqpd.storage.storage import Storage

ARGUMENTS = encode_table({"x-max-priority": 5, "x-dead-letter-exchange": "d"})
SLASH = VhostRow("/", "a" * 32)


class DataDirectory:
    """A data directory with directories of queues that earlier runs left."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def queue(self, name: str, queue_id: str, vhost: str = "/", vhost_id: str = SLASH.id, **values: Any) -> Path:
        directory = self.path / "vhosts" / vhost_id / "queues" / queue_id
        directory.mkdir(parents=True)
        text = describe(name, vhost, values.get("auto_delete", False), values.get("arguments", b""), queue_id)
        (directory / DESCRIPTION).write_bytes(text)
        return directory

    def deleted(self, queue_id: str, vhost_id: str = SLASH.id) -> Path:
        directory = self.path / "vhosts" / vhost_id / "queues" / f"{queue_id}.deleted"
        directory.mkdir(parents=True)
        return directory

    def start(self, **rows: Any) -> RecoveryFindings:
        empty: dict[str, Any] = {name: [] for name in MetadataState._fields}
        state = MetadataState(**{**empty, "instance_id": "", "vhosts": [SLASH], **rows})
        storage = Storage(self.path, post=lambda *_: None, inline=True)
        try:
            return reconcile(storage, state)
        finally:
            storage.close(clean=False)


@pytest.fixture
def data_dir(tmp_path: Path) -> DataDirectory:
    return DataDirectory(tmp_path)


def lost_and_found(data_dir: DataDirectory) -> list[str]:
    return sorted(path.name for path in (data_dir.path / "lost+found").glob("*"))


def test_queue_without_row_is_declared_from_its_directory(
    data_dir: DataDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    data_dir.queue("orders", "1", arguments=ARGUMENTS, auto_delete=True)
    data_dir.queue("known", "2")
    known = QueueRow("/", "known", "2")
    found = data_dir.start(queues=[known])
    row = QueueRow("/", "orders", "1", True, True, False, ARGUMENTS)
    assert found.state.queues == [known, row]
    assert found.changes == [Put(row)]
    assert [(each.vhost, each.name, each.whole) for each in found.report.queues] == [("/", "orders", True)]
    assert lost_and_found(data_dir) == []
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "queue 'orders' in vhost '/' was missing in the metadata and is declared again from its directory" in errors
    assert any("1 queues and 0 vhosts are declared again" in text for text in errors)


def test_lost_vhost_is_declared_with_its_queues(data_dir: DataDirectory) -> None:
    data_dir.queue("a", "1", "shop", "b" * 32)
    data_dir.queue("b", "2", "shop", "b" * 32)
    found = data_dir.start()
    assert found.state.vhosts == [SLASH, VhostRow("shop", "b" * 32)]
    assert found.changes[0] == Put(VhostRow("shop", "b" * 32)), "the vhost must be written before its queues"
    assert sorted(row.name for row in found.state.queues) == ["a", "b"]
    assert found.report.vhosts == ["shop"]
    assert found.state.permissions == []


def test_queue_moves_to_vhost_of_same_name_with_new_id(data_dir: DataDirectory) -> None:
    """The database was lost as a whole, and the first start created the vhost again."""
    data_dir.queue("orders", "1", "/", "b" * 32)
    found = data_dir.start()
    assert found.state.vhosts == [SLASH]
    assert [row.id for row in found.state.queues] == ["1"]
    assert (data_dir.path / "vhosts" / SLASH.id / "queues" / "1" / DESCRIPTION).exists()
    assert data_dir.start(queues=found.state.queues).changes == [], (
        "the next start finds the queue in its new directory"
    )


def test_deleted_queue_stays_deleted(data_dir: DataDirectory) -> None:
    """The row and the bindings of a deleted queue are removed, except bindings of a newer queue of the same name."""
    data_dir.deleted("1")
    data_dir.deleted("2")
    data_dir.queue("again", "3")
    bindings = [BindingRow("/", "amq.direct", name, "queue", "k") for name in ("old", "again")]
    rows = [QueueRow("/", "old", "1"), QueueRow("/", "again", "2"), QueueRow("/", "again", "3")]
    found = data_dir.start(queues=rows, bindings=bindings)
    assert found.state.queues == rows[2:]
    assert found.state.bindings == bindings[1:]
    assert found.changes == [Delete(rows[0]), Delete(rows[1]), DeleteBindings("/", "old", "queue")]
    assert [Path(path).name for path in found.void] == ["1", "2"]
    assert found.report.void == [("/", "old"), ("/", "again")]
    assert found.gone == []


def test_deleted_vhost_stays_deleted_with_its_content(data_dir: DataDirectory) -> None:
    shop = VhostRow("shop", "b" * 32)
    (data_dir.path / "vhosts" / f"{shop.id}.deleted" / "queues" / "1").mkdir(parents=True)
    found = data_dir.start(
        vhosts=[SLASH, shop],
        queues=[QueueRow("shop", "q", "1")],
        permissions=[PermissionRow("u", "shop", "", "", ""), PermissionRow("u", "/", "", "", "")],
    )
    assert found.state.vhosts == [SLASH]
    assert found.state.queues == []
    assert [row.vhost for row in found.state.permissions] == ["/"]
    assert found.changes == [Delete(shop)]
    assert [Path(path).name for path in found.void] == [shop.id]


def test_deleted_directories_without_rows_are_removed(data_dir: DataDirectory) -> None:
    data_dir.deleted("1")
    (data_dir.path / "vhosts" / f"{'b' * 32}.deleted").mkdir()
    found = data_dir.start()
    assert sorted(Path(path).name for path in found.gone) == ["1", "b" * 32]
    assert found.changes == []


def test_pending_deletion_is_not_touched(data_dir: DataDirectory) -> None:
    data_dir.queue("q", "1")
    data_dir.deleted("2")
    data_dir.queue("in it", "3", "shop", "b" * 32)
    leaving = [QueueRow("/", "q", "1", state="deleting"), QueueRow("/", "r", "2", state="deleting")]
    found = data_dir.start(deleting_queues=leaving, deleting_vhosts=[VhostRow("shop", "b" * 32, state="deleting")])
    assert found.state.deleting_queues == leaving
    assert (found.state.queues, found.changes, found.void, found.gone) == ([], [], [], [])
    assert lost_and_found(data_dir) == []


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped", "another id", "a bad table", "a name that is taken"])
def test_damaged_queue_directory_is_moved_to_lost_and_found(
    data_dir: DataDirectory, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    directory = data_dir.queue("orders", "1")
    path = directory / DESCRIPTION
    rows: list[QueueRow] = []
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:30])
    elif damage == "flipped":
        path.write_bytes(path.read_bytes().replace(b"orders", b"ordess"))
    elif damage == "another id":
        path.write_bytes(describe("orders", "/", False, b"", "2"))
    elif damage == "a bad table":
        path.write_bytes(describe("orders", "/", False, b"\0\0\0\x09\x01", "1"))
    else:
        rows = [QueueRow("/", "orders", "9")]
    found = data_dir.start(queues=rows)
    assert found.state.queues == rows
    assert lost_and_found(data_dir) == [f"{SLASH.id}.1"]
    assert [path for path, _ in found.report.set_aside] == [str(data_dir.path / "lost+found" / f"{SLASH.id}.1")]
    assert any("was moved to" in record.getMessage() for record in caplog.records if record.levelno == logging.ERROR)


def test_every_flipped_bit_of_a_description_is_detected() -> None:
    text = describe("orders", "/shop", True, ARGUMENTS, "0a")
    expected = Description("orders", "/shop", "0a", True, ARGUMENTS)
    assert read_description(text, "0a") == expected
    for position in range(len(text)):
        for bit in range(8):
            damaged = bytearray(text)
            damaged[position] ^= 1 << bit
            assert read_description(bytes(damaged), "0a") in {None, expected}, (
                position,
                bit,
            )  # flips in white space have no effect


def test_old_description_restores_queue_without_arguments(
    data_dir: DataDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    directory = data_dir.queue("orders", "1")
    (directory / DESCRIPTION).write_text('{\n "queue": "orders",\n "vhost": "/",\n "id": "1"\n}\n')
    found = data_dir.start()
    assert found.state.queues == [QueueRow("/", "orders", "1")]
    assert not found.report.queues[0].whole
    assert any("without arguments" in record.getMessage() for record in caplog.records)
