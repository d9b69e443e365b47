"""Log output of the server: its destination and its formats.

    text   2026-11-22T12:34:56.789Z INFO amqpd.connection.channel_zero: user 'anna' is connected [vhost=/ ...]
    JSON   {"time": "...", "level": "info", "logger": "...", "message": "...", "vhost": "/", ...}

Times are UTC. A record has one line. The objects that it is about are fields beside its text: `extra={"vhost": ...,
"queue": ...}` with names of FIELDS. Data of clients is escaped: no name, key or reason can start a line or send
control characters to a terminal. Only the additional lines of a traceback begin with two spaces.

The log goes to standard error or to `log.file`. `reopen` opens the file again after log rotation has renamed it.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from amqpd.config import LogSettings

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


class LogOutput(logging.StreamHandler[TextIO]):
    """The log handler of the process. Raises OSError if the file cannot be opened."""

    def __init__(self, settings: LogSettings) -> None:
        self.path: Path | None = settings.file
        super().__init__(self._open())
        self.setFormatter(JsonFormatter() if settings.format == "json" else TextFormatter())

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
        if former is not None:
            former.close()


def begin(settings: LogSettings) -> LogOutput:
    """Send all records to the destination in the settings. Raises OSError."""
    output = LogOutput(settings)
    root = logging.getLogger()
    for handler in root.handlers[:]:
        root.removeHandler(handler)
    root.addHandler(output)
    root.setLevel(settings.level.upper())
    return output
