"""A broker's answers as lines of text without anything that differs between two runs.

A method with its content is one line: `a.1 basic.get-ok delivery_tag=1 redelivered exchange= routing_key=q
message_count=0 {delivery_mode=2} 'body'`. Field values have their type letters, so that a `long` differs from an `int`.
Generated names, times, nodes and process ids are replaced by marks.
"""

from __future__ import annotations

import re
import struct
from typing import Any, Final

PROPERTIES: Final = (
    ("content_type", "s"), ("content_encoding", "s"), ("headers", "F"), ("delivery_mode", "o"), ("priority", "o"),
    ("correlation_id", "s"), ("reply_to", "s"), ("expiration", "s"), ("message_id", "s"), ("timestamp", "T"),
    ("type", "s"), ("user_id", "s"), ("app_id", "s"), ("cluster_id", "s"),
)  # fmt: skip
FIXED: Final = {
    "b": ">b", "B": ">B", "o": ">B", "s": ">h", "u": ">H", "I": ">i", "i": ">I", "l": ">q", "L": ">q", "f": ">f",
    "d": ">d",
}  # fmt: skip
MADE_UP: Final = (
    (re.compile(r"amq\.gen-[\w-]+"), "amq.gen-*"),
    (re.compile(r"amq\.ctag-[\w-]+"), "amq.ctag-*"),
    (re.compile(r"amq\.rabbitmq\.reply-to\.[^\s',]+"), "amq.rabbitmq.reply-to.*"),
    (re.compile(r"<\d+\.\d+\.\d+>|<[\w.@-]+\.\d+\.\d+\.\d+>"), "<pid>"),
    (re.compile(r"(?:amqpd|rabbit)[\w-]*@[\w.-]+"), "{node}"),
    (re.compile(r"127\.0\.0\.1:\d+ -> 127\.0\.0\.1:\d+"), "{connection}"),
    (re.compile(r"(timestamp_in_ms|connected_at)=l:\d+"), r"\1=*"),
    (re.compile(r"\n +"), ""),  # Erlang's printer breaks long terms into lines
)


def value(data: bytes, at: int) -> tuple[str, int]:
    """Return one field value with its type letter, and its end."""
    letter = chr(data[at])
    at += 1
    if letter in FIXED:
        (number,) = struct.unpack_from(FIXED[letter], data, at)
        return f"{letter}:{number}", at + struct.calcsize(FIXED[letter])
    if letter == "t":
        return f"t:{'true' if data[at] else 'false'}", at + 1
    if letter == "T":
        return "T:*", at + 8
    if letter == "V":
        return "V", at
    if letter == "D":
        return f"D:{data[at]}/{int.from_bytes(data[at + 1 : at + 5], 'big', signed=True)}", at + 5
    size = int.from_bytes(data[at : at + 4], "big")
    at += 4
    piece = data[at : at + size]
    assert len(piece) == size, f"a field value is cut short: {data!r}"
    if letter == "F":
        return table(piece), at + size
    if letter == "A":
        items, place = [], 0
        while place < size:
            item, place = value(piece, place)
            items.append(item)
        return f"[{', '.join(items)}]", at + size
    assert letter in "Sx", f"unknown field type {letter!r}: {data!r}"
    return f"{letter}:{text(piece)}", at + size


def table(data: bytes) -> str:
    """Decode a field table without its length. Entries are sorted by name, because their order is undefined."""
    entries, at = [], 0
    while at < len(data):
        name = data[at + 1 : at + 1 + data[at]].decode("utf-8", "backslashreplace")
        shown, at = value(data, at + 1 + data[at])
        entries.append(f"{name}={shown}")
    return "{" + ", ".join(sorted(entries)) + "}"


def properties(data: bytes) -> str:
    """Decode flags and fields of a content header, which follow its body size."""
    (flags,) = struct.unpack_from(">H", data)
    at, shown = 2, []
    for place, (name, kind) in enumerate(PROPERTIES):
        if not flags >> 15 - place & 1:
            continue
        if kind == "s":
            size = data[at]
            found, at = text(data[at + 1 : at + 1 + size]), at + 1 + size
        elif kind == "F":
            size = int.from_bytes(data[at : at + 4], "big")
            found, at = table(data[at + 4 : at + 4 + size]), at + 4 + size
        elif kind == "o":
            found, at = f"{data[at]}", at + 1
        else:
            found, at = "*", at + 8
        shown.append(f"{name}={found}")
    assert at == len(data), f"properties with trailing bytes: {data!r}"
    return "{" + ", ".join(shown) + "}"


def body(data: bytes) -> str:
    """Return the body; of a long one only its beginning and its size."""
    return repr(text(data)) if len(data) <= 200 else f"{text(data[:20])!r}... {len(data)} bytes"


def text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def method(name: str, arguments: dict[str, Any]) -> str:
    """Format a method with its arguments in order; bits only if set, other values always."""
    words = [name]
    for argument, found in arguments.items():
        if isinstance(found, bool):
            words += [argument] if found else []
        elif isinstance(found, bytes):
            words.append(f"{argument}={text(found)}")
        else:
            words.append(f"{argument}={found}")
    return " ".join(words)


def normal(line: str, marks: dict[str, str]) -> str:
    """Remove what would differ in another run. marks: the conversation's own names and their marks."""
    for pattern, mark in MADE_UP:
        line = pattern.sub(mark, line)
    for name, mark in marks.items():
        line = line.replace(name, mark)
    return line
