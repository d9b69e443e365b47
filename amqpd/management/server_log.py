"""The server's own log, for `amqpctl set_log_level`, `rotate_logs`, `log_location`, `log_tail` and `log_tail_stream`.

Only what goes to a file can be read back; what goes to standard error belongs to whoever started the broker.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from amqpd.logging_config import LogOutput
from amqpd.management.request import NO_CONTENT, ApiError, BadRequest, Call, NotThere, Reply, Role, number, reply
from amqpd.management.router import Route

log = logging.getLogger(__name__)

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "none": logging.CRITICAL + 10,
}
READ_BYTES_MAX: Final = 1 << 20
LINES_MAX: Final = 10_000


class CannotOpen(ApiError):
    """rotate_logs: the log goes on where it was."""

    error = "cannot_open"


def level_name() -> str:
    """What is set now, which need not be the setting's."""
    now = logging.getLogger().level
    return next((name for name, level in LEVELS.items() if level >= now), "none")


def log_file() -> Path | None:
    """None: it goes to standard error."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LogOutput):
            return handler.path
    return None


async def set_level(call: Call) -> Reply:
    """Sets the log level until the next start or SIGHUP."""
    level = call.text("level")
    if level not in LEVELS:
        raise BadRequest(f"level {level} is not supported. Try one of {', '.join(LEVELS)}")
    logging.getLogger().setLevel(LEVELS[level])
    log.info("the log level is %s", level)
    return NO_CONTENT


async def rotate(call: Call) -> Reply:
    """Opens the log file anew, as SIGUSR1 does.
    The file of that name is opened anew, after whatever renamed it."""
    path = log_file()
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LogOutput) and path is not None:
            try:
                handler.reopen()
            except OSError as error:
                raise CannotOpen(f"{error}; the log goes on where it was") from error
    return reply({"file": str(path) if path is not None else None})


async def location(call: Call) -> Reply:
    """Where the log is, and its level."""
    path = log_file()
    return reply({"file": str(path.absolute()) if path is not None else None, "level": level_name()})


async def tail(call: Call) -> Reply:
    """The last `lines` lines, or what came behind `position`; at most READ_BYTES_MAX, of which the last.

    The answer's `position` is where a reader goes on; a file that was rotated meanwhile is read from its beginning.
    """
    path = log_file()
    if path is None:
        raise NotThere("the log goes to standard error, not to a file (log.file)")
    lines = number("lines", call.query.get("lines", "0"), 0, LINES_MAX)
    position = number("position", call.query.get("position", "0"), 0, 1 << 62)
    try:
        text, end = await asyncio.to_thread(_read, path, position, lines)
    except OSError as error:
        raise NotThere(f"{path}: {error.strerror}") from None
    return reply({"text": text, "position": end})


def _read(path: Path, position: int, lines: int) -> tuple[str, int]:
    """Whole lines. Raises: OSError."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        first = 0 if lines or position > size else position
        file.seek(max(first, size - READ_BYTES_MAX))
        data = file.read(READ_BYTES_MAX)
    end = data.rfind(b"\n") + 1
    start = max(first, size - READ_BYTES_MAX)
    data = data[data.find(b"\n") + 1 if start > first else 0 : end]
    if lines:
        data = b"".join(data.splitlines(keepends=True)[-lines:])
    return data.decode("utf-8", "backslashreplace"), start + end


ROUTES: Final = (
    Route("PUT", "api/amqpd/log_level", Role.ADMINISTRATOR, set_level),
    Route("POST", "api/amqpd/rotate_logs", Role.ADMINISTRATOR, rotate),
    Route("GET", "api/amqpd/log_location", Role.MONITORING, location),
    Route("GET", "api/amqpd/log_tail", Role.ADMINISTRATOR, tail),
)
