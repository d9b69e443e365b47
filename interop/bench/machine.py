"""The machine: its description, its page cache, and the processes that listen on ports."""

from __future__ import annotations

import os
import platform
import socket
import time
from pathlib import Path

DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def facts(directory: Path) -> dict[str, str]:
    """Return facts about the machine for the report. directory: where the brokers keep their data."""
    cpu = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    memory_kb = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    release = dict(line.rstrip("\n").split("=", 1) for line in _lines("/etc/os-release") if "=" in line)
    return {
        "cpu": f"{cpu}, {os.cpu_count()} cores",
        "memory": f"{memory_kb / 1048576:.0f} GiB",
        "system": f"{release.get('PRETTY_NAME', 'Linux').strip(chr(34))}, Linux {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "filesystem": filesystem_of(directory),
        "load": f"{os.getloadavg()[0]:.1f} when the run began",
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return []


def filesystem_of(directory: Path) -> str:
    """Return the type of the file system with `directory`: the longest mount point above it."""
    best, kind = "", "unknown"
    for line in _lines("/proc/mounts"):
        _, mount, found = line.split()[:3]
        if directory.resolve().is_relative_to(mount) and len(mount) >= len(best):
            best, kind = mount, found
    return kind


def drop_page_cache() -> bool:
    """Write dirty pages and drop the page cache. Return False if this user may not."""
    os.sync()
    try:
        DROP_CACHES.write_text("3\n", "ascii")
    except OSError:
        return False
    return True


def free_port() -> int:
    """Return a free TCP port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def speaks_amqp(host: str, port: int, timeout_s: float = 1.0) -> bool:
    """Return True if connection.start is the answer to a protocol header."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as peer:
            peer.settimeout(timeout_s)
            peer.sendall(b"AMQP\x00\x00\x09\x01")
            return peer.recv(1) == b"\x01"
    except OSError:
        return False


def wait_for_amqp(host: str, port: int, timeout_s: float) -> bool:
    """Wait until `speaks_amqp`; return False after the timeout."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if speaks_amqp(host, port):
            return True
        time.sleep(0.05)
    return False


def listener(port: int) -> int:
    """Return the process id of the listener on this TCP port; 0: none, or not visible to this user."""
    inodes = set()
    for line in _lines("/proc/net/tcp")[1:] + _lines("/proc/net/tcp6")[1:]:
        fields = line.split()
        if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
            inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            if any(str(fd.readlink()) in inodes for fd in (process / "fd").iterdir()):
                return int(process.name)
        except OSError:  # ended meanwhile, or another user's
            continue
    return 0
