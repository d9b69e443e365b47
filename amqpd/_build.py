"""What this installation is: its version, and whether the hot modules are compiled.

Importing it imports nothing of the server, so that `amqpd --version` and the ready line cost no start-up time.
"""

from __future__ import annotations

import platform
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from pathlib import Path
from typing import Final

from amqpd import __version__

WITNESS: Final = "message"
"""The module of `amqpd.broker` that speaks for the compiled group: it is compiled with all of it, or not at all."""


def is_compiled() -> bool:
    """Whether mypyc's extension modules are what this installation runs; finds the file and does not load it."""
    spec = PathFinder.find_spec(f"amqpd.broker.{WITNESS}", [str(Path(__file__).parent / "broker")])
    return spec is not None and spec.origin is not None and spec.origin.endswith(tuple(EXTENSION_SUFFIXES))


def describe() -> str:
    """`amqpd 0.1.0 (compiled)` or `amqpd 0.1.0 (interpreted)`: how the version and the ready line begin."""
    return f"amqpd {__version__} ({'compiled' if is_compiled() else 'interpreted'})"


def warning() -> str:
    """What an operator of an interpreted installation should know; empty for a compiled one."""
    if is_compiled():
        return ""
    slower = "amqpd runs interpreted, several times slower than compiled"
    if (Path(__file__).resolve().parents[1] / "setup.py").exists():
        return f"{slower}: it runs from its sources"
    return (
        f"{slower}: when it was installed there was no C compiler, or no Python.h, or AMQPD_INTERPRETED was set. "
        "On Debian: apt install gcc python3-dev, then install it again"
    )


def version_line() -> str:
    """What `amqpd --version` prints."""
    return f"{describe()}, {platform.python_implementation()} {platform.python_version()}"
