"""Log output of the server: its destination and its formats.

    text   2026-11-22T12:34:56.789Z INFO amqpd.connection.channel_zero: user 'anna' is connected [vhost=/ ...]
    JSON   {"time": "...", "level": "info", "logger": "...", "message": "...", "vhost": "/", ...}

Times are UTC. A record has one line. The objects that it is about are fields beside its text: `extra={"vhost": ...,
"queue": ...}` with names of FIELDS. Data of clients is escaped: no name, key or reason can start a line or send
control characters to a terminal. Only the additional lines of a traceback begin with two spaces.

The log goes to standard error or to `log.file`. `reopen` opens the file again after log rotation has renamed it.

The reader of a pipe or a terminal can stop: a container's log collector hangs, Ctrl-S. The event loop waits for it
for READER_WAIT_S in STALL_S, all waits together. Then records are dropped until it reads again, and a line says how
many. The same is done while `log.file` cannot be written: its disk is full. A line on standard error says so.
"""

from __future__ import annotations

import json
import logging
import os
import re
import select
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from amqpd.config.schema import LogSettings

FIELDS: Final = ("connection", "channel", "vhost", "queue", "exchange", "user", "peer")
_PLAIN: Final = re.compile(r"[\w./:*@-]+", re.ASCII)


def escaped(text: str) -> str:
    """Return the text with unprintable characters escaped as in Python."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
    for name in FIELDS:
        value = record.__dict__.get(name)
        if value is not None:
            yield name, value


def _time(record: logging.LogRecord) -> str:
    seconds, thousandths = divmod(int(record.created * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{thousandths:03d}Z"


class TextFormatter(logging.Formatter):
    """Formatter for text, see the module."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname} {record.name}: {escaped(record.getMessage())}"
        fields = " ".join(f"{name}={_shown(value)}" for name, value in _fields(record))
        if fields:
            line += f" [{fields}]"
        more: str = record.__dict__.get("stack", "")
        if record.exc_info:
            more = self.formatException(record.exc_info)
        return line + "".join(f"\n  {escaped(each)}" for each in more.splitlines())


def _shown(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else '"' + escaped(text).replace('"', '\\"') + '"'


class JsonFormatter(logging.Formatter):
    """Formatter for JSON, see the module."""

    def format(self, record: logging.LogRecord) -> str:
        item: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value if isinstance(value, int) else str(value) for name, value in _fields(record)},
        }
        if record.exc_info:
            item["exception"] = self.formatException(record.exc_info)
        if "stack" in record.__dict__:
            item["stack"] = record.__dict__["stack"]
        return json.dumps(item)


READER_WAIT_S: Final = 1.0
STALL_S: Final = 60.0
WAIT_STEP_S: Final = 0.01
# A pipe or a socket that is ready takes so many bytes without blocking (PIPE_BUF of Linux). A terminal does not.
PIECE_BYTES: Final = 4096


class LogOutput(logging.StreamHandler[TextIO]):
    """The log handler of the process. Raises OSError if the file cannot be opened."""

    def __init__(self, settings: LogSettings) -> None:
        self.path: Path | None = settings.file
        super().__init__(self._open())
        self.setFormatter(JsonFormatter() if settings.format == "json" else TextFormatter())
        self._descriptor = _writable(self.stream) if self.path is None else self.stream.fileno()
        self._reader = select.poll()
        if self._descriptor >= 0:
            self._reader.register(self._descriptor, select.POLLOUT)
        # Records that were dropped since the reader stopped.
        self.dropped_count = 0
        self._dropped_text = ""
        # Time left for waits, and the time from which on it is READER_WAIT_S again.
        self._wait_left_s = 0.0
        self._waits_end_s = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if self._descriptor < 0:
            super().emit(record)
            return
        try:
            lines = self.format(record) + self.terminator
            if self.dropped_count:
                count, text = self.dropped_count, self._dropped_text
                gap = logging.LogRecord(__name__, logging.WARNING, "", 0, text, (count,), None)
                lines = f"\n{self.format(gap)}{self.terminator}{lines}"
            if self._write(lines.encode("utf-8", "backslashreplace")):
                self.dropped_count = 0
            else:
                self.dropped_count += 1
                self._dropped_text = _DROPPED
        except OSError as error:
            self.dropped_count += 1
            self._dropped_text = _UNWRITTEN
            if self.path is not None and self.dropped_count == 1 and sys.stderr is not None:
                with suppress(OSError):
                    sys.stderr.write(f"amqpd: log.file {self.path} cannot be written: {error.strerror}\n")
        except Exception:  # noqa: BLE001  # as StreamHandler does: an error of the log stops nothing
            self.handleError(record)

    def _write(self, data: bytes) -> bool:
        """Write to a file, a pipe or a terminal. Return whether all of it was written; raises OSError.

        Cost: 1 us more than a write.
        """
        rest = memoryview(data)
        while rest:
            try:
                if self._reader.poll(0):
                    rest = rest[os.write(self._descriptor, rest[:PIECE_BYTES]) :]
                    continue
            except BlockingIOError:  # a terminal whose buffer is full: poll does not see it
                pass
            if not self._wait():
                return False
        return True

    def _wait(self) -> bool:
        """Give the reader a moment. Return False if it has stopped, or if the waits of this STALL_S are used up."""
        began_s = time.monotonic()
        if began_s >= self._waits_end_s:
            self._waits_end_s, self._wait_left_s = began_s + STALL_S, READER_WAIT_S
        if self.dropped_count or self._wait_left_s <= 0:
            return False
        time.sleep(WAIT_STEP_S)
        self._wait_left_s -= time.monotonic() - began_s
        return True

    def _open(self) -> TextIO:
        if self.path is None:
            return sys.stderr
        try:
            return self.path.open("a", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise OSError(f"log.file {self.path} cannot be opened: {error.strerror}") from error

    def reopen(self) -> None:
        """Open the file again by its name and close the old one. Raises OSError, and then keeps the old one."""
        if self.path is None:
            return
        fresh = self._open()
        former = self.setStream(fresh)
        self._reader.unregister(self._descriptor)
        self._descriptor = fresh.fileno()
        self._reader.register(self._descriptor, select.POLLOUT)
        if former is not None:
            former.close()


_DROPPED: Final = "%d records were dropped, because the reader of the log did not read"
_UNWRITTEN: Final = "%d records were dropped, because the log could not be written"


def _writable(stream: TextIO | None) -> int:
    """Return the descriptor of a stream that may take nothing for a while: a pipe, a terminal or a socket whose reader
    has stopped, a file on a full disk. Otherwise -1.

    For a terminal it is another one, which does not block. The flag of the stream itself is shared with other
    processes, such as a shell.
    """
    try:
        descriptor = -1 if stream is None else stream.fileno()
        mode = os.fstat(descriptor).st_mode
    except OSError:  # closed, or replaced by a program that embeds amqpd
        return -1
    if os.isatty(descriptor):
        try:
            return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:  # the terminal of another user: it may block
            return descriptor
    return descriptor if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISREG(mode) else -1


def begin(settings: LogSettings) -> LogOutput:
    """Send all records to the destination in the settings. Raises OSError."""
    output = LogOutput(settings)
    root = logging.getLogger()
    for handler in root.handlers[:]:
        root.removeHandler(handler)
    root.addHandler(output)
    root.setLevel(settings.level.upper())
    return output
