"""The metadata has lost its tail: what the queues' directories still tell comes back, what was deleted does not."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from amqpd.broker.vhost.recovery import RecoveryFindings, reconcile
from amqpd.protocol.field_table import encode_table
from amqpd.storage.metadata.store import (
    BindingRow,
    Delete,
    DeleteBindings,
    MetadataState,
    PermissionRow,
    Put,
    QueueRow,
    VhostRow,
)
from amqpd.storage.queue_json import DESCRIPTION, Description, describe, read_description
from amqpd.storage.storage import Storage

ARGUMENTS = encode_table({"x-max-priority": 5, "x-dead-letter-exchange": "d"})
SLASH = VhostRow("/", "a" * 32)


class Place:
    """A data directory with directories of queues, as lives before left them."""

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
        state = MetadataState(**{**empty, "instance_id": "", "fresh": False, "vhosts": [SLASH], **rows})
        storage = Storage(self.path, post=lambda *_: None, inline=True)
        try:
            return reconcile(storage, state)
        finally:
            storage.close(clean=False)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def shelf(place: Place) -> list[str]:
    return sorted(path.name for path in (place.path / "lost+found").glob("*"))


def test_a_queue_without_its_row_is_declared_again(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.queue("orders", "1", arguments=ARGUMENTS, auto_delete=True)
    place.queue("known", "2")
    known = QueueRow("/", "known", "2")
    found = place.start(queues=[known])
    row = QueueRow("/", "orders", "1", True, True, False, ARGUMENTS)
    assert found.state.queues == [known, row]
    assert found.changes == [Put(row)]
    assert [(each.vhost, each.name, each.whole) for each in found.report.queues] == [("/", "orders", True)]
    assert shelf(place) == []
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "queue 'orders' in vhost '/' was missing in the metadata and is declared again from its directory" in told
    assert any("1 queues and 0 vhosts are declared again" in text for text in told)


def test_its_vhost_too_where_that_is_lost(place: Place) -> None:
    place.queue("a", "1", "shop", "b" * 32)
    place.queue("b", "2", "shop", "b" * 32)
    found = place.start()
    assert found.state.vhosts == [SLASH, VhostRow("shop", "b" * 32)]
    assert found.changes[0] == Put(VhostRow("shop", "b" * 32)), "before what refers to it"
    assert sorted(row.name for row in found.state.queues) == ["a", "b"]
    assert found.report.vhosts == ["shop"]
    assert found.state.permissions == []


def test_a_vhost_that_has_another_id_now_takes_the_queue(place: Place) -> None:
    """A first start made the vhost anew: the database was lost as a whole."""
    place.queue("orders", "1", "/", "b" * 32)
    found = place.start()
    assert found.state.vhosts == [SLASH]
    assert [row.id for row in found.state.queues] == ["1"]
    assert (place.path / "vhosts" / SLASH.id / "queues" / "1" / DESCRIPTION).exists()
    assert place.start(queues=found.state.queues).changes == [], "the next start finds it in its place"


def test_what_was_deleted_stays_deleted(place: Place) -> None:
    """Its row is back, with its bindings; not those of a queue of the same name that was declared since."""
    place.deleted("1")
    place.deleted("2")
    place.queue("again", "3")
    bindings = [BindingRow("/", "amq.direct", name, "queue", "k") for name in ("old", "again")]
    rows = [QueueRow("/", "old", "1"), QueueRow("/", "again", "2"), QueueRow("/", "again", "3")]
    found = place.start(queues=rows, bindings=bindings)
    assert found.state.queues == rows[2:]
    assert found.state.bindings == bindings[1:]
    assert found.changes == [Delete(rows[0]), Delete(rows[1]), DeleteBindings("/", "old", "queue")]
    assert [Path(path).name for path in found.void] == ["1", "2"]
    assert found.report.void == [("/", "old"), ("/", "again")]
    assert found.gone == []


def test_a_deleted_vhost_stays_deleted_with_all_that_is_in_it(place: Place) -> None:
    shop = VhostRow("shop", "b" * 32)
    (place.path / "vhosts" / f"{shop.id}.deleted" / "queues" / "1").mkdir(parents=True)
    found = place.start(
        vhosts=[SLASH, shop],
        queues=[QueueRow("shop", "q", "1")],
        permissions=[PermissionRow("u", "shop", "", "", ""), PermissionRow("u", "/", "", "", "")],
    )
    assert found.state.vhosts == [SLASH]
    assert found.state.queues == []
    assert [row.vhost for row in found.state.permissions] == ["/"]
    assert found.changes == [Delete(shop)]
    assert [Path(path).name for path in found.void] == [shop.id]


def test_what_no_row_knows_any_more_goes(place: Place) -> None:
    place.deleted("1")
    (place.path / "vhosts" / f"{'b' * 32}.deleted").mkdir()
    found = place.start()
    assert sorted(Path(path).name for path in found.gone) == ["1", "b" * 32]
    assert found.changes == []


def test_a_deletion_under_way_is_left_to_its_end(place: Place) -> None:
    place.queue("q", "1")
    place.deleted("2")
    place.queue("in it", "3", "shop", "b" * 32)
    leaving = [QueueRow("/", "q", "1", state="deleting"), QueueRow("/", "r", "2", state="deleting")]
    found = place.start(deleting_queues=leaving, deleting_vhosts=[VhostRow("shop", "b" * 32, state="deleting")])
    assert found.state.deleting_queues == leaving
    assert (found.state.queues, found.changes, found.void, found.gone) == ([], [], [], [])
    assert shelf(place) == []


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped", "another id", "a bad table", "a name that is taken"])
def test_a_directory_that_cannot_be_believed_is_set_aside(
    place: Place, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    directory = place.queue("orders", "1")
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
    found = place.start(queues=rows)
    assert found.state.queues == rows
    assert shelf(place) == [f"{SLASH.id}.1"]
    assert [path for path, _ in found.report.set_aside] == [str(place.path / "lost+found" / f"{SLASH.id}.1")]
    assert any("was moved to" in record.getMessage() for record in caplog.records if record.levelno == logging.ERROR)


def test_every_wrong_bit_of_a_description_is_seen() -> None:
    text = describe("orders", "/shop", True, ARGUMENTS, "0a")
    whole = Description("orders", "/shop", "0a", True, ARGUMENTS)
    assert read_description(text, "0a") == whole
    for position in range(len(text)):
        for bit in range(8):
            wrong = bytearray(text)
            wrong[position] ^= 1 << bit
            assert read_description(bytes(wrong), "0a") in {None, whole}, (position, bit)  # white space is free


def test_a_description_of_an_earlier_version_tells_no_arguments(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    directory = place.queue("orders", "1")
    (directory / DESCRIPTION).write_text('{\n "queue": "orders",\n "vhost": "/",\n "id": "1"\n}\n')
    found = place.start()
    assert found.state.queues == [QueueRow("/", "orders", "1")]
    assert not found.report.queues[0].whole
    assert any("without arguments" in record.getMessage() for record in caplog.records)
