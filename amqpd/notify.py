"""What systemd is told of a service with `Type=notify`: ready, reloading, stopping, and that the loop still runs.

A datagram each, `NAME=value` lines, to the socket that NOTIFY_SOCKET names (sd_notify(3)); without that variable
nothing happens at all. With WatchdogSec= in the unit systemd ends and restarts a broker whose loop stands still:
WATCHDOG=1 is sent from the loop, twice in the time that WATCHDOG_USEC gives.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import MutableMapping
from typing import Final

log = logging.getLogger(__name__)

BEATS: Final = 2


class Notifier:
    """The variables are taken out of `environ`: no process that this one starts is to speak for it."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._address = environ.pop("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):
            self._address = "\0" + self._address[1:]  # a name without a file
        period, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        self._beat_s = 0.0
        if period.isascii() and period.isdecimal() and pid in {"", str(os.getpid())}:
            self._beat_s = int(period) / 1e6 / BEATS
        self._timer: asyncio.TimerHandle | None = None

    def ready(self, loop: asyncio.AbstractEventLoop, status: str) -> None:
        """Clients can connect. status: what `systemctl status` shows. From now on the watchdog is fed."""
        self.tell("READY=1", f"STATUS={status}", f"MAINPID={os.getpid()}")
        if self._address and self._beat_s:
            self._beat(loop)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self.tell("WATCHDOG=1")
        self._timer = loop.call_later(self._beat_s, self._beat, loop)

    def reloading(self) -> None:
        """The settings are being read again; `reloaded` ends it. For `Type=notify-reload`, too."""
        self.tell("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def reloaded(self) -> None:
        self.tell("READY=1")

    def stopping(self) -> None:
        """The watchdog is fed until `close`: a clean stop syncs logs."""
        self.tell("STOPPING=1")

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def tell(self, *lines: str) -> None:
        """Never waits. A manager that cannot be reached is a line in the log, and then nobody is told any more."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sock:
                sock.sendto("\n".join(lines).encode("utf-8", "replace"), self._address)
        except BlockingIOError:
            log.info("systemd is not told %s: its socket is full", lines[0])
        except (OSError, ValueError) as error:
            log.warning("systemd cannot be told %s, nor anything further: %s", lines[0], error)
            self._address = ""
