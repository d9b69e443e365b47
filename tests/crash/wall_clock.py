"""The wall clock of a process, set from outside as by an operator; the monotonic clock does not change.

A preloaded library adds an offset from a file to the time of day. Start the process with `env`; `jump` sets the offset
while the process runs.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

SHIM = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile long long *seconds;
__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("TEST_CLOCK_FILE");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    seconds = mmap(0, 8, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
}
int clock_gettime(clockid_t id, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, id, now);
    if (!failed && seconds && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += *seconds;
    return failed;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec here;
    clock_gettime(CLOCK_REALTIME, &here);
    now->tv_sec = here.tv_sec;
    now->tv_usec = here.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *out) {
    struct timespec here;
    clock_gettime(CLOCK_REALTIME, &here);
    if (out) *out = here.tv_sec;
    return here.tv_sec;
}
"""


class WallClock:
    """The clock of a broker process that is started with `env`; `jump` sets its offset in seconds."""

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("a clock that jumps: no C compiler, to make the library that moves it")
        source, library, self._file = directory / "shim.c", directory / "shim.so", directory / "seconds"
        source.write_text(SHIM)
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True)
        self.jump(0)
        self.env = {"LD_PRELOAD": str(library), "TEST_CLOCK_FILE": str(self._file)}

    def jump(self, seconds: int) -> None:
        if not self._file.exists():
            self._file.write_bytes(bytes(8))
        with self._file.open("r+b", buffering=0) as file:
            file.write(struct.pack("@q", seconds))
