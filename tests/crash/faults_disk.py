"""Real disk faults, as far as this machine allows: power cuts, full disks, and failing system calls.

`LoopDisk`: an ext4 on a loop device, in a file. `cut` shuts it down as a power cut does (EXT4_IOC_SHUTDOWN without a
flush of the journal), so unsynced data is lost. The writing process must be stopped first: an fsync in flight may
return success while the journal is shut down.

`Injector`: strace, which makes the n-th call of a kind fail in a running process.

Both have `why_not`: the reason to skip if the fault is not available here, or "".
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final, Self

import pytest

SHUTDOWN: Final = 0x8004587D  # EXT4_IOC_SHUTDOWN
NO_FLUSH: Final = 2  # EXT4_GOING_FLAGS_NOLOGFLUSH
PATIENCE_S: Final = 600.0


REQUIRED: Final = "TEST_REQUIRE_FAULTS"
"""If set, a test that needs strace or ext4's tools must not be skipped because they are not installed."""


def skip_or_fail(description: str, reason: str) -> None:
    """Skip visibly if there is a `reason`; fail if a tool is not installed although REQUIRED is set.

    Missing root, loop devices, or rights to mount or attach are always a skip.
    """
    if not reason:
        return
    if os.environ.get(REQUIRED) and "not installed" in reason:
        pytest.fail(f"{description}: {reason}, and {REQUIRED} is set")
    pytest.skip(f"{description}: {reason}")


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _needs(*programs: str) -> str:
    if os.geteuid() != 0:
        return "needs root, to mount"
    missing = [program for program in programs if shutil.which(program) is None]
    return f"{', '.join(missing)} not installed" if missing else ""


class LoopDisk:
    """An ext4 on a loop device, in a file, whose power can be cut. path: its mount point."""

    def __init__(self, directory: Path, size_bytes: int = 96 << 20) -> None:
        self._image = directory / "disk.img"
        self.path = directory / "disk"
        self.path.mkdir()
        with self._image.open("wb") as file:
            file.truncate(size_bytes)
        # No blocks reserved for root, so that f_bavail is all the free space.
        _run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0", str(self._image))

    @staticmethod
    def why_not() -> str:
        """Try it once with a small disk."""
        reason = _needs("mkfs.ext4", "mount", "umount", "losetup")
        if reason:
            return reason
        with tempfile.TemporaryDirectory() as name:
            try:
                with LoopDisk(Path(name), 4 << 20) as disk:
                    disk.cut()
            except (OSError, subprocess.CalledProcessError) as error:
                return f"no ext4 on a loop device here: {getattr(error, 'stderr', None) or error}"
        return ""

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.path))

    def cut(self) -> None:
        """Cut the power: no more data reaches the disk, not even the journal's commit."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", NO_FLUSH))
        finally:
            os.close(fd)

    def unmount(self) -> None:
        deadline = time.monotonic() + 60
        while os.path.ismount(self.path):
            try:
                _run("umount", str(self.path))
            except subprocess.CalledProcessError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)  # the killed process has not exited yet
        # A process with its own mount namespace, started while the disk was mounted, still holds the mount. A new mount
        # would then be the disk that was cut.
        deadline = time.monotonic() + PATIENCE_S
        while _run("losetup", "-j", str(self._image)):
            assert time.monotonic() < deadline, f"another mount namespace keeps {self.path}"
            time.sleep(0.05)

    def __enter__(self) -> Self:
        self.mount()
        return self

    def __exit__(self, *_: object) -> None:
        self.unmount()


class Filler:
    """A file that takes all the free space of a file system."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "filler"

    def fill(self) -> int:
        """Fill the file system. Return the bytes that are still free."""
        with self._path.open("ab", buffering=0) as file:
            for size in (1 << 20, 4096, 512):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
        usage = os.statvfs(self._path)
        return usage.f_bavail * usage.f_frsize

    def free(self) -> None:
        self._path.unlink()


class Injector:
    """strace on a running process. description: its -e inject= expression, such as `fdatasync:error=EIO:when=3`."""

    def __init__(self, pid: int, description: str, trace: Path) -> None:
        self.trace = trace
        call = description.partition(":")[0]
        command = [
            "strace",
            "-f",
            "-y",
            "-o",
            str(trace),
            "-e",
            f"trace={call}",
            "-e",
            f"inject={description}",
            "-p",
            str(pid),
        ]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        if "attached" not in line:
            self._process.wait(60)
            raise OSError(f"strace may not attach: {line.strip()}")

    @staticmethod
    def why_not() -> str:
        if shutil.which("strace") is None:
            return "strace not installed"
        with tempfile.TemporaryDirectory() as name, subprocess.Popen(["sleep", "20"]) as sleeper:
            try:
                Injector(sleeper.pid, "fdatasync:error=EIO:when=1", Path(name) / "trace").end()
            except OSError as error:
                return str(error)
            finally:
                sleeper.kill()
        return ""

    def end(self) -> None:
        """End strace by SIGINT, so that it detaches: a killed strace would leave the process stopped."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        self._process.communicate(timeout=60)

    def hits(self) -> int:
        """Return the number of calls that failed."""
        return self.trace.read_text(encoding="utf-8", errors="replace").count("(INJECTED)")


def stop_process(pid: int) -> None:
    """Send SIGSTOP and wait until all threads have stopped."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 60
    while True:
        states = [(task / "stat").read_text().rpartition(") ")[2][:1] for task in Path(f"/proc/{pid}/task").iterdir()]
        if all(state in "TtZX" for state in states):
            return
        assert time.monotonic() < deadline, f"threads of {pid} did not stop: {states}"
        time.sleep(0.005)
