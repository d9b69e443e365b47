"""`amqpctl backup` of a broker under load, and brokers on the result of `restore`."""

from __future__ import annotations

import errno
import io
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest

from amqpd.cli import backup as backups
from amqpd.cli.main import run
from amqpd.testing import BrokerProcess

pytestmark = pytest.mark.slow

PERSISTENT = pika.BasicProperties(delivery_mode=2)
SMALL = {"storage.segment_size_bytes": 8192, "storage.upkeep_interval_s": 0.05}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", settings=SMALL) as process:
        yield process


def connect(broker: BrokerProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port))


def backup(broker: BrokerProcess, target: Path) -> Path:
    run = broker.ctl("backup", str(target))
    assert run.returncode == 0, run.stderr
    return max(target.iterdir())


def restore_to_new_broker(backup_folder: Path, tmp_path: Path) -> BrokerProcess:
    """Restore the backup; return a broker on it that is not started."""
    process = BrokerProcess(tmp_path / "restored", settings=SMALL)
    run = process.ctl("restore", str(backup_folder))
    assert run.returncode == 0, run.stderr
    return process


def bodies(broker: BrokerProcess, *queues: str) -> list[bytes]:
    """Get all messages of the queues."""
    found = []
    with connect(broker) as connection:
        channel = connection.channel()
        for queue in queues:
            while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
                found.append(got[2])
    return found


class RepeatedWork:
    """Work that a separate thread repeats until `stop`."""

    def __init__(self, work: Callable[[threading.Event], None]) -> None:
        self._stopped = threading.Event()
        self._errors: list[BaseException] = []
        self._work = work
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work(self._stopped)
        except BaseException as error:  # noqa: BLE001  # raised by `stop`
            self._errors.append(error)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(60)
        assert self._errors == []


def test_backup_under_load_has_confirmed_messages(broker: BrokerProcess, tmp_path: Path) -> None:
    """While one client publishes and one consumes: a backup has all messages that were confirmed and not acked
    before it began, and none that was acked long before.
    """
    confirmed: list[bytes] = []
    acked: list[bytes] = []
    confirmed_at_start: list[int] = []  # during a backup: the number of messages confirmed before it

    def publish(stopped: threading.Event) -> None:
        with connect(broker) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            while not stopped.is_set():
                body = b"%d" % len(confirmed) + b"." * 300
                channel.basic_publish("", "work", body, PERSISTENT)
                confirmed.append(body)

    def consume(stopped: threading.Event) -> None:
        with connect(broker) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=10)
            for method, _, body in channel.consume("work", inactivity_timeout=0.05):
                if stopped.is_set():
                    break
                limit = confirmed_at_start[0] if confirmed_at_start else len(confirmed)
                if method is not None and len(acked) < limit - 200:  # some messages are always ready
                    channel.basic_ack(method.delivery_tag)
                    acked.append(body)
                elif method is not None:
                    channel.basic_nack(method.delivery_tag)

    with connect(broker) as connection:
        connection.channel().queue_declare("work", durable=True)
    loads = [RepeatedWork(publish), RepeatedWork(consume)]
    try:
        while len(confirmed) < 400 or len(acked) < 100:
            threading.Event().wait(0.02)
        for _ in range(3):
            acked_before = set(acked)
            # A crash, and so a backup, may lose acks of the last 50 ms; these are much older.
            threading.Event().wait(2.0)
            confirmed_at_start.append(len(confirmed))
            confirmed_before = set(confirmed)
            backup_folder = backup(broker, tmp_path / "backups")
            acked_after = set(acked)
            confirmed_at_start.clear()
    finally:
        for load in loads:
            load.stop()
    broker.kill()
    with restore_to_new_broker(backup_folder, tmp_path) as restored_broker:
        assert "damage" not in restored_broker.stderr
        found = bodies(restored_broker, "work")
    assert confirmed_before - acked_after - set(found) == set()
    assert len(confirmed_before - acked_after) > 50  # otherwise the test proves nothing
    assert set(found) & acked_before == set()


def test_dead_lettered_messages_are_in_one_of_the_queues(broker: BrokerProcess, tmp_path: Path) -> None:
    """Messages are dead-lettered in a circle during the backup; segments are drained and removed, others are
    created.
    """
    with connect(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for name, other in (("a", "b"), ("b", "a")):
            arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": other, "x-queue-type": "quorum"}
            arguments |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
            arguments |= {"x-delivery-limit": 1_000_000}
            channel.queue_declare(name, durable=True, arguments=arguments)
        sent = [b"%d" % number + b"." * 200 for number in range(200)]
        for body in sent:
            channel.basic_publish("", "a", body, PERSISTENT)

    def push(queue: str, stopped: threading.Event) -> None:
        with connect(broker) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=5)
            for method, _, _ in channel.consume(queue, inactivity_timeout=0.05):
                if stopped.is_set():
                    break
                if method is not None:
                    channel.basic_reject(method.delivery_tag, requeue=False)

    loads = [RepeatedWork(lambda stopped, queue=queue: push(queue, stopped)) for queue in ("a", "b")]  # type: ignore[misc]
    try:
        backup_folder = []
        for _ in range(2):
            backup_folder.append(backup(broker, tmp_path / "backups"))
            threading.Event().wait(1.0)
    finally:
        for load in loads:
            load.stop()
    broker.kill()
    for each in backup_folder:
        with restore_to_new_broker(each, tmp_path) as restored_broker:
            assert set(sent) - set(bodies(restored_broker, "a", "b")) == set(), each
        shutil.rmtree(tmp_path / "restored")


def test_second_backup_copies_only_new_files(broker: BrokerProcess, tmp_path: Path) -> None:
    """The second backup is complete without the first."""
    with connect(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
        broker.ctl("add_user", "anna", "pw")
        for number in range(200):
            channel.basic_publish("", "q", b"%d" % number + b"." * 1000, PERSISTENT)
            channel.basic_publish("", "s", b"x", PERSISTENT)
        first = backup(broker, tmp_path / "backups")
        channel.basic_publish("", "q", b"last", PERSISTENT)
        second = backup(broker, tmp_path / "backups")
    logs = {path.relative_to(second): path.stat().st_ino for path in (second / "data").rglob("*.log")}
    shared_files = [
        path for path, inode in logs.items() if (first / path).exists() and (first / path).stat().st_ino == inode
    ]
    assert len(shared_files) > len(logs) * 0.8
    broker_inodes = {path.stat().st_ino for path in broker.data_dir.rglob("*.log")}
    assert broker_inodes.isdisjoint(logs.values())
    assert not (broker.data_dir / ".backup").exists()
    shutil.rmtree(first)
    broker.stop()
    with restore_to_new_broker(second, tmp_path) as restored_broker:
        found = bodies(restored_broker, "q")
        assert [body.split(b".")[0] for body in found] == [*(b"%d" % number for number in range(200)), b"last"]
        assert "anna" in restored_broker.ctl("list_users").stdout
        assert restored_broker.ctl("verify_log").returncode == 0
        restored_broker.stop()
        restored_broker.start()  # restarts like any other broker


def test_backups_within_one_second_have_different_names(broker: BrokerProcess, tmp_path: Path) -> None:
    """The next backup gets the next free name, so a script need not wait a second between two."""
    names = [backup(broker, tmp_path / "backups").name for _ in range(3)]
    assert names == sorted(set(names))
    assert sorted(each.name for each in (tmp_path / "backups").iterdir()) == names


def test_damaged_earlier_backup_is_ignored(broker: BrokerProcess, tmp_path: Path) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        for number in range(100):
            channel.basic_publish("", "q", b"%d" % number + b"." * 1000, PERSISTENT)
        first = backup(broker, tmp_path / "backups")
        logs = sorted((first / "data").rglob("*.log"))
        logs[0].unlink()
        logs[1].write_bytes(b"")
        second = backup(broker, tmp_path / "backups")
    broker.stop()
    with restore_to_new_broker(second, tmp_path) as restored_broker:
        assert len(bodies(restored_broker, "q")) == 100


def test_backup_as_root(broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner of the data directory must be able to write into the directory that root creates; a link there is
    not followed.
    """
    owners: list[tuple[int, int]] = []
    owner = broker.data_dir.stat()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fchown", lambda _fd, uid, gid: owners.append((uid, gid)))
    command = ["--data-dir", str(broker.data_dir), "backup", str(tmp_path / "backups")]
    assert run(command, io.StringIO(), io.StringIO(), io.StringIO(), {}) == 0
    assert owners == [(owner.st_uid, owner.st_gid)]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").touch()
    (broker.data_dir / ".backup").symlink_to(tmp_path / "other")
    err = io.StringIO()
    assert run(command, io.StringIO(), err, io.StringIO(), {}) == 65
    assert ".backup: Not a directory" in err.getvalue()
    assert (tmp_path / "other" / "mine").exists()


def test_files_are_copied_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On file systems without hard links, such as Windows disks and shares."""
    backup_folder = tmp_path / "first" / "data"
    backup_folder.mkdir(parents=True)
    (backup_folder / "a").write_text("text")
    source = tmp_path / "a"
    source.write_text("text")
    status = source.stat()
    copier = backups._Backup(None, tmp_path, tmp_path / "into")  # type: ignore[arg-type]
    copier._into, copier._base = tmp_path / "into", backup_folder
    copier._before = {"a": [status.st_size, status.st_ino, status.st_mtime_ns]}

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", refuse)
        assert copier._copy(source, "a")
    assert ((tmp_path / "into" / "a").read_text(), copier._copied_bytes) == ("text", 4)


def test_remains_of_interrupted_backup_are_removed(broker: BrokerProcess, tmp_path: Path) -> None:
    (broker.data_dir / ".backup" / "data").mkdir(parents=True)
    (broker.data_dir / ".backup" / "metadata.sqlite").write_text("half")
    (tmp_path / "backups" / "2026-11-23T00-00-00Z.partial" / "data").mkdir(parents=True)
    backup_folder = backup(broker, tmp_path / "backups")
    assert backup_folder.name.endswith("Z.partial") or (backup_folder / "backup.json").exists()
    assert not (broker.data_dir / ".backup").exists()


def test_failed_restore_leaves_no_data(broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk leaves no data that a broker would start on, and the restore works later when there is space."""
    with connect(broker) as connection:
        connection.channel().queue_declare("q", durable=True)
    backup_folder = backup(broker, tmp_path / "backups")
    broker.stop()
    target = tmp_path / "restored"
    copied: list[str] = []

    def disk_full(source: str, into: str, **_: object) -> None:
        copied.append(into)
        if len(copied) == 2:
            raise OSError(errno.ENOSPC, "No space left on device", into)
        shutil.copyfile(source, into)

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copy2", disk_full)
        patched.setattr(shutil.copytree, "__defaults__", (False, None, disk_full, False, False))
        out = io.StringIO()
        assert run(["--data-dir", str(target), "restore", str(backup_folder)], out, out, io.StringIO(), {}) == 65
    assert "No space left" in out.getvalue()
    assert list(target.iterdir()) == []
    (target / ".restore").mkdir()
    (target / ".restore" / "half").touch()
    with restore_to_new_broker(backup_folder, tmp_path) as restored_broker:
        assert "q" in restored_broker.ctl("list_queues").stdout
        assert not (restored_broker.data_dir / ".restore").exists()


def test_invalid_backups_and_restores_are_refused(broker: BrokerProcess, tmp_path: Path) -> None:
    assert "use another directory" in broker.ctl("backup", str(broker.data_dir / "x")).stderr
    backup_folder = backup(broker, tmp_path / "backups")
    assert "is not empty" in broker.ctl("restore", str(backup_folder)).stderr
    other = BrokerProcess(tmp_path / "other")
    message = other.ctl("restore", str(tmp_path / "backups")).stderr
    assert f"is not a backup; there is {backup_folder}" in message
    (tmp_path / "backup.json").write_text("[]", "utf-8")
    assert f"{tmp_path} is not a backup\n" in other.ctl("restore", str(tmp_path)).stderr
    (backup_folder / "data" / "instance-id").unlink()
    assert "is damaged: 1 files are missing or cut" in other.ctl("restore", str(backup_folder)).stderr
    remote = broker.ctl("--uri", "http://guest:guest@127.0.0.1:1", "backup", str(tmp_path / "x"))
    assert remote.returncode == 64 or "on the broker's machine" in remote.stderr
    broker.stop()
    assert broker.ctl("backup", str(tmp_path / "backups")).returncode == 69
    assert [each.name for each in (tmp_path / "backups").iterdir() if "partial" in each.name] == []
