"""What a terminal can show and a file should not have: bold and colour, both off where NO_COLOR is set.

rabbitmqctl sends its escapes into files too, which helps nobody. https://no-color.org
"""

from __future__ import annotations

import os
from typing import TextIO


def bold(text: str, out: TextIO) -> str:
    return _dressed(text, out, "1")


def red(text: str, out: TextIO) -> str:
    return _dressed(text, out, "31")


def green(text: str, out: TextIO) -> str:
    return _dressed(text, out, "32")


def _dressed(text: str, out: TextIO, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if out.isatty() and not os.environ.get("NO_COLOR") else text
