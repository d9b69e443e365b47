"""The file system interface: the real and the simulated one behave alike; the simulated one can lose unsynced data."""

from __future__ import annotations

import ast
import errno
import os
from pathlib import Path

import pytest
from simulated_filesystem import SimulatedFileSystem

from amqpd.storage.filesystem import APPEND, RESERVE_SIZE_BYTES, FileSystem, OpenFile, Reserve
from amqpd.storage.fsync_thread import sync_parts
from amqpd.storage.sync_job import SyncBatch, SyncPart


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, str]:
    if request.param == "real":
        return FileSystem(), str(tmp_path)
    filesystem = SimulatedFileSystem()
    filesystem.mkdir("/d")
    return filesystem, "/d"


@pytest.mark.parametrize(
    ("number", "is_there"), [(errno.ENOENT, False), (errno.ESTALE, True), (errno.EIO, True), (errno.EACCES, True)]
)
def test_file_is_not_there_only_if_the_disk_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_there: bool
) -> None:
    """A disk that does not answer now, such as NFS, must not stop a broker."""
    filesystem = FileSystem()
    path = str(tmp_path / "f")
    fd = filesystem.open(path, APPEND)
    assert filesystem.is_open_at(fd, path)

    def broken(_path: str) -> os.stat_result:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", broken)
        found = filesystem.is_open_at(fd, path)
    assert found is is_there
    Path(path).rename(f"{path}.old")
    Path(path).touch()
    assert not filesystem.is_open_at(fd, path)
    filesystem.close(fd)


def test_file_system_calls(disk: tuple[FileSystem, str]) -> None:
    filesystem, root = disk
    assert filesystem.mkdir(f"{root}/a") is True
    assert filesystem.mkdir(f"{root}/a") is False
    assert filesystem.listdir(f"{root}/none") == []
    fd = filesystem.open(f"{root}/a/f", APPEND)
    assert filesystem.writev(fd, [b"one", b"", b"two"]) == 6
    assert filesystem.write(fd, b"three") == 5
    assert filesystem.pread(fd, 100, 3) == b"twothree"
    filesystem.truncate(fd, 4)
    filesystem.write_whole(fd, b"!")
    filesystem.fdatasync(fd)
    filesystem.syncfs(fd)
    assert filesystem.file_size(fd) == filesystem.size(f"{root}/a/f") == 5
    filesystem.close(fd)
    assert filesystem.read_file(f"{root}/a/f") == b"onet!"
    filesystem.fsync_dir(f"{root}/a")
    filesystem.replace_file(f"{root}/a/f", b"new", sync=True)
    assert filesystem.listdir(f"{root}/a") == ["f"]
    mapping = filesystem.map(f"{root}/a/m", 16)
    mapping[0:4] = b"mark"
    mapping.close()
    assert filesystem.read_file(f"{root}/a/m") == b"mark" + bytes(12)
    filesystem.rename(f"{root}/a", f"{root}/b")
    assert not filesystem.exists(f"{root}/a")
    filesystem.unlink(f"{root}/b/none")
    filesystem.mkdir(f"{root}/b/c")
    filesystem.remove_tree(f"{root}/b")
    filesystem.remove_tree(f"{root}/b")
    assert filesystem.listdir(root) == []
    with pytest.raises(FileNotFoundError):
        filesystem.read_file(f"{root}/none")


def test_file_is_closed_after_its_last_sync(disk: tuple[FileSystem, str]) -> None:
    filesystem, root = disk
    file = OpenFile(filesystem, f"{root}/f", APPEND)
    file.pins = 2
    file.close()
    filesystem.write(file.fd, b"still open")
    file.unpin()
    filesystem.write(file.fd, b"still open")
    file.unpin()
    assert file.fd == -1


def test_reserve_is_taken_and_released_once(disk: tuple[FileSystem, str]) -> None:
    filesystem, root = disk
    reserve = Reserve(filesystem, f"{root}/reserve")
    assert reserve.release() is False
    reserve.take()
    assert filesystem.size(f"{root}/reserve") == RESERVE_SIZE_BYTES
    assert reserve.release() is True
    assert reserve.release() is False
    assert not filesystem.exists(f"{root}/reserve")


def test_synced_data_survives_a_power_cut() -> None:
    filesystem = SimulatedFileSystem()
    filesystem.mkdir("/d")
    filesystem.fsync_dir("/")
    fd = filesystem.open("/d/f", APPEND)
    filesystem.write(fd, b"synced")
    filesystem.fdatasync(fd)
    filesystem.fsync_dir("/d")
    filesystem.write(fd, b"x" * 2000)
    filesystem.open("/d/unsynced name", APPEND)
    assert filesystem.killed().read_file("/d/f") == b"synced" + b"x" * 2000
    states = {filesystem.crashed(seed).read_file("/d/f") for seed in range(60)}
    names = {len(filesystem.crashed(seed).listdir("/d")) for seed in range(60)}
    assert all(state.startswith(b"synced") for state in states)
    assert len(states) > 10
    assert b"synced" in states
    assert names == {1, 2}
    assert filesystem.crashed(3).read_file("/d/f") == filesystem.crashed(3).read_file("/d/f")


def test_full_disk_writes_short_and_then_fails() -> None:
    filesystem = SimulatedFileSystem(capacity=10)
    filesystem.mkdir("/d")
    fd = filesystem.open("/d/f", APPEND)
    assert filesystem.write(fd, b"x" * 8) == 8
    assert filesystem.write(fd, b"x" * 8) == 2
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        filesystem.write(fd, b"x")


INTERFACE_FILES = {"filesystem.py", "simulation.py"}
STORAGE = Path(__file__).parents[2] / "storage"
EXPORT = {STORAGE / "export", STORAGE / "spark"}
"""Packages of programs that read the logs; the broker imports neither (tests/test_architecture.py)."""
PATH_CALLS = {"read_text", "read_bytes", "write_text", "write_bytes", "touch"}
MODULES = {"os", "time", "shutil", "tempfile", "mmap", "fcntl", "datetime"}
HARMLESS = {"path", "strerror", "urandom", "PathLike", "fspath"}


def bypassing_calls(source: str) -> list[str]:
    """Calls of the operating system, of files and of clocks that bypass `FileSystem` and `Clock`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            harmless = node.value.id == "os" and (node.attr in HARMLESS or node.attr.startswith(("O_", "SEEK_")))
            harmless |= (node.value.id, node.attr) == ("datetime", "fromtimestamp")  # converts a time, reads no clock
            if node.value.id in MODULES and not harmless:
                found.append(f"{node.value.id}.{node.attr}")
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name) and function.id == "open":
                found.append("open")
            if isinstance(function, ast.Attribute) and function.attr in PATH_CALLS:
                found.append(function.attr)
    return found


def test_storage_uses_disk_and_clock_only_through_the_interface() -> None:
    """A seed can replay a crash or a failing disk only if every use of disk and clock goes through the interface."""
    bypassing = {
        path.relative_to(STORAGE).as_posix(): found
        for path in sorted(STORAGE.rglob("*.py"))
        if path.name not in INTERFACE_FILES and EXPORT.isdisjoint(path.parents)
        if (found := bypassing_calls(path.read_text("utf-8")))
    }
    # SQLite opens its own database. The instance id is read before a simulation can begin. The temporary copy of the
    # database, for a start on a full disk, does not have to last.
    assert bypassing == {"metadata/store.py": ["read_text"], "metadata/sqlite.py": ["tempfile.TemporaryDirectory"]}


@pytest.mark.parametrize(
    "line", ["os.rename(a, b)", "open(a)", "time.time()", "path.read_bytes()", "time.sleep(0)", "os.open(a, 0)"]
)
def test_bypassing_call_is_found(line: str) -> None:
    assert len(bypassing_calls(line)) == 1


def test_directory_sync_is_retried_without_a_free_descriptor() -> None:
    """If no descriptor is free to open a directory, the sync is tried again and has not failed."""
    filesystem = SimulatedFileSystem()
    filesystem.mkdir("/d")
    failures_left = 3

    def fault(name: str, path: str) -> OSError | None:
        nonlocal failures_left
        if name == "fsync_dir" and failures_left:
            failures_left -= 1
            return OSError(errno.EMFILE, "Too many open files")
        return None

    filesystem.fault = fault
    job = SyncBatch(1)
    part = SyncPart("q")
    part.directories.append("/d")
    job.parts.append(part)
    sync_parts(filesystem, job.parts, -1)
    assert (part.failed, failures_left) == (False, 0)
    filesystem.fault = lambda name, path: OSError(errno.EMFILE, "Too many open files") if name == "fsync_dir" else None
    sync_parts(filesystem, job.parts, -1)
    assert part.failed, "the retries end"
