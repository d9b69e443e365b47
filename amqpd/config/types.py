"""Types of settings: convert a text of the command line or a value of the file, and check its bounds.

A type raises ValueError with a text that follows the setting's name: "amqp.port must be from 0 to 65535, not
70000".

Also look-ups of files that settings name. If this user has no access, the result is a text, not a traceback. At the
end, the description of a setting: a row of `schema`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

N = TypeVar("N", int, float)
T = TypeVar("T")


class ValueType(NamedTuple):
    """A type of setting, with its word in the help and its conversion, which raises ValueError."""

    word: str
    convert: Callable[[object], Any]


def _number(raw: object) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int | str):
        raise ValueError(f"must be a whole number, not {raw!r}")
    try:
        return int(raw)
    except ValueError:
        raise ValueError(f"must be a whole number, not {raw!r}") from None


def _within(value: N, low: float, high: float) -> N:
    if not low <= value <= high:
        raise ValueError(f"must be from {low} to {high}, not {value}")
    return value


def integer(low: int, high: int, word: str = "number") -> ValueType:
    """Return the type of whole numbers from `low` to `high`. `word` is its unit in the help."""
    return ValueType(word, lambda raw: _within(_number(raw), low, high))


def _decimal(raw: object, low: float, high: float, what: str) -> float:
    """Return a number with decimals. what: for the error text."""
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        raise ValueError(f"must be {what}, not {raw!r}")
    try:
        value = float(raw)
    except ValueError:
        raise ValueError(f"must be {what}, not {raw!r}") from None
    return _within(value, low, high)


def seconds(low: float, high: float) -> ValueType:
    """Return the type of times in seconds, with decimals, from `low` to `high`."""
    return ValueType("seconds", lambda raw: _decimal(raw, low, high, "a number of seconds"))


_UNITS: Final = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def byte_count(low: int, high: int) -> ValueType:
    """Return the type of sizes in bytes from `low` to `high`. A text may end in KiB, MiB or GiB."""

    def convert(raw: object) -> int:
        if isinstance(raw, str):
            match = re.fullmatch(r"(\d+) ?([a-z]*)", raw.strip(), re.IGNORECASE)
            if match is None or match[2].upper() not in _UNITS:
                raise ValueError(f"must be a number of bytes such as 65536 or 64 MiB, not {raw!r}")
            raw = int(match[1]) * _UNITS[match[2].upper()]
        return _within(_number(raw), low, high)

    return ValueType("bytes", convert)


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError(f"must be text, not {raw!r}")
    if "\0" in raw:
        raise ValueError("must not hold a NUL character")
    return raw


def _some_text(raw: object) -> str:
    text = _text(raw)
    if not text:
        raise ValueError("must not be empty")
    return text


def _short_text(raw: object) -> str:
    text = _some_text(raw)
    if len(text.encode("utf-8", "surrogateescape")) > 255:
        raise ValueError("must be at most 255 bytes long")  # spec: a short string
    return text


def _boolean(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and raw.lower() in {"true", "yes", "on", "1"}:
        return True
    if isinstance(raw, str) and raw.lower() in {"false", "no", "off", "0"}:
        return False
    raise ValueError(f"must be true or false, not {raw!r}")


def _names(raw: object) -> tuple[str, ...]:
    parts = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"must be a list of names, not {raw!r}")
    return tuple(name for part in parts if (name := part.strip()))


_MECHANISMS: Final = ("PLAIN", "AMQPLAIN", "EXTERNAL")
_SASL_MECHANISMS: Final = ("", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def _mechanisms(raw: object) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.upper() for name in _names(raw)))
    if not names or not set(names) <= set(_MECHANISMS):
        raise ValueError(f"must be one or more of {', '.join(_MECHANISMS)}, not {raw!r}")
    return names


def _address(raw: object) -> str:
    text = _text(raw).strip()
    host, colon, port = text.rpartition(":")
    bare = ":" not in host or (host.startswith("[") and host.endswith("]"))
    if not (colon and bare and port.isascii() and port.isdigit() and int(port) < 65536):
        raise ValueError(f"must be host:port, an IPv6 address in brackets, not {raw!r}")
    return text


def _some_address(raw: object) -> str:
    text = _address(raw)
    if text.startswith(":") or text.endswith(":0"):
        raise ValueError(f"must be host:port, both of them named, not {raw!r}")
    return text


def _addresses(raw: object) -> tuple[str, ...]:
    return tuple(_some_address(each) for each in _names(raw))


def _topic_name(raw: object) -> str:
    text = _text(raw)
    if text and (text.strip(".") == "" or re.fullmatch(r"[a-zA-Z0-9._-]{1,100}", text) is None):
        raise ValueError(f"must be at most 100 of the characters a-z A-Z 0-9 . _ -, as Kafka's topics, not {raw!r}")
    return text


def _pattern(raw: object) -> str:
    text = _text(raw)
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"is no regular expression: {error}") from None
    return text


def _sasl_mechanism(raw: object) -> str:
    text = _text(raw).upper()
    if text not in _SASL_MECHANISMS:
        raise ValueError(f"must be one of {', '.join(_SASL_MECHANISMS[1:])} or empty, not {raw!r}")
    return text


def choice(*words: str) -> ValueType:
    """Return the type of texts that are one of these words, in any case."""

    def convert(raw: object) -> str:
        text = _text(raw).lower()
        if text not in words:
            raise ValueError(f"must be one of {', '.join(words)}, not {raw!r}")
        return text

    return ValueType("|".join(words), convert)


def _compat(raw: object) -> str:
    text = _text(raw)
    if text and re.fullmatch(r"rabbitmq-\d{1,3}\.\d{1,3}", text) is None:
        raise ValueError(f"must be empty or rabbitmq-MAJOR.MINOR such as rabbitmq-3.12, not {raw!r}")
    return text


def _off_port(raw: object) -> int | None:
    return None if isinstance(raw, str) and raw.lower() in {"", "off", "none"} else _within(_number(raw), 0, 65535)


OFF_PORT: Final = ValueType("port|off", _off_port)
TEXT: Final = ValueType("text", _text)
SOME_TEXT: Final = ValueType("text", _some_text)
SHORT_TEXT: Final = ValueType("text", _short_text)
MULTIPLE: Final = ValueType("number", lambda raw: _decimal(raw, 0.0, 1000.0, "a number"))
SHARE: Final = ValueType("share", lambda raw: _decimal(raw, 0.0, 1.0, "a number between 0 and 1"))
BOOLEAN: Final = ValueType("true|false", _boolean)
NAMES: Final = ValueType("name,name...", _names)
MECHANISMS: Final = ValueType("name,name...", _mechanisms)
PATH: Final = ValueType("path", lambda raw: Path(_some_text(raw)))
NO_SHORT_TEXT: Final = ValueType("text", lambda raw: _short_text(raw) if _text(raw) else "")
NO_PATH: Final = ValueType("path", lambda raw: Path(raw) if (raw := _text(raw)) else None)
COMPAT: Final = ValueType("rabbitmq-X.Y", _compat)
ADDRESS: Final = ValueType("host:port", _address)
NO_ADDRESS: Final = ValueType("host:port", lambda raw: _some_address(raw) if _text(raw) else "")
ADDRESSES: Final = ValueType("host:port,host:port...", _addresses)
TOPIC_NAME: Final = ValueType("name", _topic_name)
NO_PATTERN: Final = ValueType("regular expression", _pattern)
SASL_MECHANISM: Final = ValueType("name", _sasl_mechanism)


def file_exists(path: Path, unknown: bool, is_kind: Callable[[int], bool] = bool) -> bool:
    """Return whether a file of this kind exists; `unknown` if this user may not look."""
    try:
        return _exists(path, is_kind)
    except OSError:
        return unknown


def access_problem(path: Path, missing: str, is_kind: Callable[[int], bool] = bool) -> str:
    """Return the text about a file that is missing (`missing`) or not accessible; empty if it exists."""
    try:
        return "" if _exists(path, is_kind) else missing
    except OSError as error:
        return f"{error.filename}: {error.strerror}"


def _exists(path: Path, is_kind: Callable[[int], bool]) -> bool:
    """Return whether there is a file with such a mode. Raises: OSError, which `Path.exists` of Python 3.14 hides."""
    try:
        return is_kind(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a name with a NUL
        return False


# -- description of a setting ------------------------------------------------------------------------------------------


class Setting(NamedTuple):
    """Description of one setting.

    Attributes:
        environ_also: RabbitMQ's variable that sets it too, or empty
        reloaded: a reload applies a change; else a restart is needed
    """

    name: str
    default: object
    kind: ValueType
    doc: str
    secret: bool
    environ_also: str
    reloaded: bool

    @property
    def variable(self) -> str:
        return "AMQPD_" + self.name.replace(".", "__").upper()

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")


def setting(
    default: T, kind: ValueType, doc: str, *, secret: bool = False, environ_also: str = "", reloaded: bool = False
) -> T:
    """Return a dataclass field with a description, for `schema.rows`. A `secret` is never shown."""
    metadata = {"kind": kind, "doc": doc, "secret": secret, "environ_also": environ_also, "reloaded": reloaded}
    return field(default=default, repr=not secret, metadata=metadata)
