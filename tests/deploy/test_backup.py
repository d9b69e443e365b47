"""`amqpctl backup` of a broker under load, and what a broker finds on what `restore` has made of it."""

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


def restored(made: Path, tmp_path: Path) -> BrokerProcess:
    """Not started yet."""
    process = BrokerProcess(tmp_path / "restored", settings=SMALL)
    run = process.ctl("restore", str(made))
    assert run.returncode == 0, run.stderr
    return process


def bodies(broker: BrokerProcess, *queues: str) -> list[bytes]:
    """All that is in them."""
    found = []
    with connect(broker) as connection:
        channel = connection.channel()
        for queue in queues:
            while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
                found.append(got[2])
    return found


class Load:
    """Something that is done over and over in a thread of its own, until `stop`."""

    def __init__(self, work: Callable[[threading.Event], None]) -> None:
        self._over = threading.Event()
        self._errors: list[BaseException] = []
        self._work = work
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work(self._over)
        except BaseException as error:  # noqa: BLE001  # shown by `stop`
            self._errors.append(error)

    def stop(self) -> None:
        self._over.set()
        self._thread.join(60)
        assert self._errors == []


def test_what_was_confirmed_before_is_there(broker: BrokerProcess, tmp_path: Path) -> None:
    """While one publishes and one consumes: what was confirmed and not taken before the backup began is in it; what was
    acked before it began is not.
    """
    confirmed: list[bytes] = []
    taken: list[bytes] = []
    held: list[int] = []  # while a backup is made, however long that takes: how many were confirmed before it

    def publish(over: threading.Event) -> None:
        with connect(broker) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            while not over.is_set():
                body = b"%d" % len(confirmed) + b"." * 300
                channel.basic_publish("", "work", body, PERSISTENT)
                confirmed.append(body)

    def consume(over: threading.Event) -> None:
        with connect(broker) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=10)
            for method, _, body in channel.consume("work", inactivity_timeout=0.05):
                if over.is_set():
                    break
                most = held[0] if held else len(confirmed)
                if method is not None and len(taken) < most - 200:  # some always wait
                    channel.basic_ack(method.delivery_tag)
                    taken.append(body)
                elif method is not None:
                    channel.basic_nack(method.delivery_tag)

    with connect(broker) as connection:
        connection.channel().queue_declare("work", durable=True)
    loads = [Load(publish), Load(consume)]
    try:
        while len(confirmed) < 400 or len(taken) < 100:
            threading.Event().wait(0.02)
        for _ in range(3):
            taken_before = set(taken)
            # Acks of the last 50 ms may be lost in a crash, and so in a backup; these are older by far.
            threading.Event().wait(2.0)
            held.append(len(confirmed))
            confirmed_before = set(confirmed)
            made = backup(broker, tmp_path / "backups")
            taken_after = set(taken)
            held.clear()
    finally:
        for load in loads:
            load.stop()
    broker.kill()
    with restored(made, tmp_path) as again:
        assert "damage" not in again.stderr
        found = bodies(again, "work")
    assert confirmed_before - taken_after - set(found) == set()
    assert len(confirmed_before - taken_after) > 50  # there was something to lose
    assert set(found) & taken_before == set()


def test_what_goes_from_queue_to_queue_is_in_one_of_them(broker: BrokerProcess, tmp_path: Path) -> None:
    """Messages are dead-lettered in a circle all the while; their segments are drained and removed, new ones come."""
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

    def push(queue: str, over: threading.Event) -> None:
        with connect(broker) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=5)
            for method, _, _ in channel.consume(queue, inactivity_timeout=0.05):
                if over.is_set():
                    break
                if method is not None:
                    channel.basic_reject(method.delivery_tag, requeue=False)

    loads = [Load(lambda over, queue=queue: push(queue, over)) for queue in ("a", "b")]  # type: ignore[misc]
    try:
        made = []
        for _ in range(2):
            made.append(backup(broker, tmp_path / "backups"))
            threading.Event().wait(1.0)
    finally:
        for load in loads:
            load.stop()
    broker.kill()
    for each in made:
        with restored(each, tmp_path) as again:
            assert set(sent) - set(bodies(again, "a", "b")) == set(), each
        shutil.rmtree(tmp_path / "restored")


def test_a_further_one_copies_what_is_new(broker: BrokerProcess, tmp_path: Path) -> None:
    """And is whole without the first."""
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
    same = [path for path, inode in logs.items() if (first / path).exists() and (first / path).stat().st_ino == inode]
    assert len(same) > len(logs) * 0.8
    theirs = {path.stat().st_ino for path in broker.data_dir.rglob("*.log")}
    assert theirs.isdisjoint(logs.values())
    assert not (broker.data_dir / ".backup").exists()
    shutil.rmtree(first)
    broker.stop()
    with restored(second, tmp_path) as again:
        found = bodies(again, "q")
        assert [body.split(b".")[0] for body in found] == [*(b"%d" % number for number in range(200)), b"last"]
        assert "anna" in again.ctl("list_users").stdout
        assert again.ctl("verify_log").returncode == 0
        again.stop()
        again.start()  # and once more, as any other


def test_one_begins_in_the_second_of_the_last(broker: BrokerProcess, tmp_path: Path) -> None:
    """Its name is the next one: a script that makes two need not wait."""
    names = [backup(broker, tmp_path / "backups").name for _ in range(3)]
    assert names == sorted(set(names))
    assert sorted(each.name for each in (tmp_path / "backups").iterdir()) == names


def test_a_former_one_that_is_cut_or_gone_is_no_hindrance(broker: BrokerProcess, tmp_path: Path) -> None:
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
    with restored(second, tmp_path) as again:
        assert len(bodies(again, "q")) == 100


def test_as_root(broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who owns the data directory has to write into the directory that root makes in it; a link there leads nowhere."""
    given: list[tuple[int, int]] = []
    owner = broker.data_dir.stat()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fchown", lambda _fd, uid, gid: given.append((uid, gid)))
    line = ["--data-dir", str(broker.data_dir), "backup", str(tmp_path / "backups")]
    assert run(line, io.StringIO(), io.StringIO(), io.StringIO(), {}) == 0
    assert given == [(owner.st_uid, owner.st_gid)]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").touch()
    (broker.data_dir / ".backup").symlink_to(tmp_path / "other")
    err = io.StringIO()
    assert run(line, io.StringIO(), err, io.StringIO(), {}) == 65
    assert ".backup: Not a directory" in err.getvalue()
    assert (tmp_path / "other" / "mine").exists()


def test_where_no_links_can_be_all_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk of Windows', a share."""
    made = tmp_path / "first" / "data"
    made.mkdir(parents=True)
    (made / "a").write_text("text")
    source = tmp_path / "a"
    source.write_text("text")
    about = source.stat()
    work = backups._Backup(None, tmp_path, tmp_path / "into")  # type: ignore[arg-type]
    work._into, work._base = tmp_path / "into", made
    work._before = {"a": [about.st_size, about.st_ino, about.st_mtime_ns]}

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", refuse)
        assert work._copy(source, "a")
    assert ((tmp_path / "into" / "a").read_text(), work._copied_bytes) == ("text", 4)


def test_what_is_left_of_one_that_was_broken_off(broker: BrokerProcess, tmp_path: Path) -> None:
    (broker.data_dir / ".backup" / "data").mkdir(parents=True)
    (broker.data_dir / ".backup" / "metadata.sqlite").write_text("half")
    (tmp_path / "backups" / "2026-11-23T00-00-00Z.partial" / "data").mkdir(parents=True)
    made = backup(broker, tmp_path / "backups")
    assert made.name.endswith("Z.partial") or (made / "backup.json").exists()
    assert not (broker.data_dir / ".backup").exists()


def test_half_a_restore_is_none(broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk leaves nothing that a broker would start on, and is no hindrance once there is room."""
    with connect(broker) as connection:
        connection.channel().queue_declare("q", durable=True)
    made = backup(broker, tmp_path / "backups")
    broker.stop()
    target = tmp_path / "restored"
    copied: list[str] = []

    def full(source: str, into: str, **_: object) -> None:
        copied.append(into)
        if len(copied) == 2:
            raise OSError(errno.ENOSPC, "No space left on device", into)
        shutil.copyfile(source, into)

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copy2", full)
        patched.setattr(shutil.copytree, "__defaults__", (False, None, full, False, False))
        out = io.StringIO()
        assert run(["--data-dir", str(target), "restore", str(made)], out, out, io.StringIO(), {}) == 65
    assert "No space left" in out.getvalue()
    assert list(target.iterdir()) == []
    (target / ".restore").mkdir()
    (target / ".restore" / "half").touch()
    with restored(made, tmp_path) as again:
        assert "q" in again.ctl("list_queues").stdout
        assert not (again.data_dir / ".restore").exists()


def test_refused(broker: BrokerProcess, tmp_path: Path) -> None:
    assert "use another directory" in broker.ctl("backup", str(broker.data_dir / "x")).stderr
    made = backup(broker, tmp_path / "backups")
    assert "is not empty" in broker.ctl("restore", str(made)).stderr
    other = BrokerProcess(tmp_path / "other")
    advice = other.ctl("restore", str(tmp_path / "backups")).stderr
    assert f"is not a backup; there is {made}" in advice
    (tmp_path / "backup.json").write_text("[]", "utf-8")
    assert f"{tmp_path} is not a backup\n" in other.ctl("restore", str(tmp_path)).stderr
    (made / "data" / "instance-id").unlink()
    assert "is damaged: 1 files are missing or cut" in other.ctl("restore", str(made)).stderr
    remote = broker.ctl("--uri", "http://guest:guest@127.0.0.1:1", "backup", str(tmp_path / "x"))
    assert remote.returncode == 64 or "on the broker's machine" in remote.stderr
    broker.stop()
    assert broker.ctl("backup", str(tmp_path / "backups")).returncode == 69
    assert [each.name for each in (tmp_path / "backups").iterdir() if "partial" in each.name] == []
