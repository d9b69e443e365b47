"""Text for terminals: width, visible control characters, bold and colour.

Bold and colour are written to terminals only, and not if NO_COLOR is set (https://no-color.org). rabbitmqctl writes
its escapes into files too.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from typing import Final, TextIO

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")
_CONTROL_IN_LINES: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SHORT_ESCAPES: Final = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def visible(text: str) -> str:
    """Return the text with control characters as escapes."""
    if _CONTROL.search(text) is None:
        return text
    return _CONTROL.sub(_escape, text)


def visible_lines(text: str) -> str:
    """Return a text of several lines as `visible`, but with its line breaks and tabs."""
    if _CONTROL_IN_LINES.search(text) is None:
        return text
    return _CONTROL_IN_LINES.sub(_escape, text)


def width(text: str) -> int:
    """Return the number of terminal cells: two for a wide East Asian character, none for a combining one."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in {"W", "F"} else 1 for one in text
    )


def _escape(match: re.Match[str]) -> str:
    one = match[0]
    return _SHORT_ESCAPES.get(one) or f"\\x{ord(one):02x}"


def bold(text: str, out: TextIO) -> str:
    return _styled(text, out, "1")


def red(text: str, out: TextIO) -> str:
    return _styled(text, out, "31")


def _styled(text: str, out: TextIO, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if out.isatty() and not os.environ.get("NO_COLOR") else text


def write_message(err: TextIO, text: str) -> None:
    """Write to standard error, and flush it. If its reader has ended or its disk is full, the text is lost, and the
    command continues.
    """
    with suppress(OSError):
        err.write(text)
        err.flush()


class StatusLine:
    """The last line of a terminal, which each text replaces."""

    INTERVAL_S: Final = 0.1

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self.written_at = 0.0
        self._is_visible = False

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self.written_at >= self.INTERVAL_S

    def write(self, text: str) -> None:
        from shutil import get_terminal_size  # slow to import, because of its compressors

        self.written_at = time.monotonic()
        self._out.write(f"\r\x1b[K{text[: get_terminal_size().columns - 1]}")  # a longer line would wrap
        self._out.flush()
        self._is_visible = True

    def close(self) -> None:
        if self._is_visible:
            self._out.write("\n")
            self._out.flush()
            self._is_visible = False
