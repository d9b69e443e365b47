"""The server's log: where it goes, and how a record looks.

Text, a line each:  2026-11-22T12:34:56.789Z INFO amqpd.connection.channel_zero: user 'anna' is connected [vhost=/ ...]
JSON, a line each:  {"time": "...", "level": "info", "logger": "...", "message": "...", "vhost": "/", ...}

Times are UTC. What a record is about travels beside its sentence, as `extra={"vhost": ..., "queue": ...}` with the
names in FIELDS, and is shown by both formats. Whatever a client sent is escaped: no name, key or reason can begin a
line of its own or reach a terminal. The further lines of a traceback begin with two spaces.

It goes to standard error, or to `log.file`, which `reopen` opens anew after whatever rotates logs has renamed it.
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
    """The text with everything that is not to be printed written as Python would; most is returned as it is."""
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
    """A line of text, as the module shows it."""

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
    """An object on a line, as the module shows it."""

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
    """One per process. Raises: OSError when the file cannot be opened."""

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
        """The file of that name from now on; the former one is closed. Raises: OSError, and goes on with the former."""
        if self.path is None:
            return
        fresh = self._open()
        former = self.setStream(fresh)
        if former is not None:
            former.close()


def begin(settings: LogSettings) -> LogOutput:
    """Sends what is logged from now on to where the settings say. Raises: OSError."""
    output = LogOutput(settings)
    root = logging.getLogger()
    for handler in root.handlers[:]:
        root.removeHandler(handler)
    root.addHandler(output)
    root.setLevel(settings.level.upper())
    return output
