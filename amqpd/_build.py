"""Version of this installation, and whether its hot modules are compiled.

This module imports nothing of the server, so `amqpd --version` and the ready line cost no start-up time.
"""

from __future__ import annotations

import platform
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from pathlib import Path
from typing import Final

from amqpd import __version__

WITNESS: Final = "message"
"""Module of `amqpd.broker` to look at. All modules of the compiled group are compiled, or none."""


def is_compiled() -> bool:
    """Return whether this installation runs mypyc's extension modules. Finds the file without loading it."""
    spec = PathFinder.find_spec(f"amqpd.broker.{WITNESS}", [str(Path(__file__).parent / "broker")])
    return spec is not None and spec.origin is not None and spec.origin.endswith(tuple(EXTENSION_SUFFIXES))


def describe() -> str:
    """Return `amqpd 0.1.0 (compiled)` or `amqpd 0.1.0 (interpreted)`."""
    return f"amqpd {__version__} ({'compiled' if is_compiled() else 'interpreted'})"


def warning() -> str:
    """Return a warning for operators of an interpreted installation; "" if it is compiled."""
    if is_compiled():
        return ""
    slower = "amqpd runs interpreted, several times slower than compiled"
    if (Path(__file__).resolve().parents[1] / "setup.py").exists():
        return f"{slower}, because it runs from its sources"
    return (
        f"{slower}: when it was installed there was no C compiler, or no Python.h, or AMQPD_INTERPRETED was set. "
        "On Debian: apt install gcc python3-dev, then install it again"
    )


def version_line() -> str:
    """Return the output of `amqpd --version`."""
    return f"{describe()}, {platform.python_implementation()} {platform.python_version()}"
