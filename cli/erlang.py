"""Erlang terms: parsed, as bytes (`term_to_binary`), and printed.

RabbitMQ encrypts configuration values as terms: atoms, integers, floats, strings, binaries, tuples, lists. Erlang
represents a string as a list of numbers; here it is a str. `parse`, `packed`, `unpacked` and `printed` are for these.

The other functions print JSON values of the admin API as terms, in the forms that rabbitmqctl's tables and its
`erlang` formatter use.

Source: https://www.erlang.org/doc/apps/erts/erl_ext_dist.html; a test beside RabbitMQ lets Erlang 25 read our bytes.
"""

from __future__ import annotations

import re
import struct
from typing import Any, Final, TypeAlias

from amqpd.cli.terminal import visible


class TermAtom(str):
    """An atom, printed as `name` or `'a name'`."""

    __slots__ = ()


Term: TypeAlias = "TermAtom | str | bytes | int | float | tuple[Term, ...] | list[Term]"

VERSION: Final = 131
DEPTH_MAX: Final = 100
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<float>-?\d+\.\d+(?:[eE][+-]?\d+)?)|(?P<int>-?\d+)|(?P<atom>[a-z][A-Za-z0-9_@]*)
    |'(?P<quoted>(?:[^'\\]|\\.)*)'|<<"(?P<binary>(?:[^"\\]|\\.)*)"(?:/utf8)?>>|<<\s*(?P<bytes>(?:\d+(?:\s*,\s*\d+)*)?)\s*>>
    |"(?P<string>(?:[^"\\]|\\.)*)"|(?P<mark>[{}\[\],.]))""",
    re.VERBOSE,
)
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "e": "\x1b", "f": "\f", "s": " ", "v": "\v", "d": "\x7f"}
_ATOM: Final = re.compile("[a-z][A-Za-z0-9_@]*")


class NotATerm(ValueError):
    """The text or the bytes are not a term of the supported types."""


def parse(text: str) -> Term:
    """Return the term in a text, which may end in a full stop. Raises: NotATerm."""
    tokens = []
    at = 0
    text = text.strip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise NotATerm(f"no Erlang term: {text[at : at + 20]}")
        kind = found.lastgroup or ""
        tokens.append((kind, found[kind]))
        at = found.end()
    if tokens and tokens[-1] == ("mark", "."):
        tokens.pop()
    tokens.reverse()
    term = _term(tokens, 0)
    if tokens:
        raise NotATerm("more than one Erlang term")
    return term


def _term(tokens: list[tuple[str, str]], depth: int) -> Term:
    """Parse one term. The next token is the last of the list."""
    if not tokens or depth > DEPTH_MAX:
        raise NotATerm("an Erlang term without its end")
    kind, text = tokens.pop()
    match kind:
        case "int":
            return int(text)
        case "float":
            return float(text)
        case "atom":
            return TermAtom(text)
        case "quoted":
            return TermAtom(_unescaped(text))
        case "string":
            return _unescaped(text)
        case "binary":
            return _unescaped(text).encode()
        case "bytes":
            return _bytes(text)
    if text not in "{[":
        raise NotATerm(f"no Erlang term: {text}")
    items: list[Term] = []
    end = "}" if text == "{" else "]"
    if tokens and tokens[-1] == ("mark", end):
        tokens.pop()
        return () if end == "}" else []
    while True:
        items.append(_term(tokens, depth + 1))
        after = tokens.pop() if tokens else ("", "")
        if after == ("mark", end):
            return tuple(items) if end == "}" else items
        if after != ("mark", ","):
            raise NotATerm("an Erlang term without its end")


def _bytes(text: str) -> bytes:
    numbers = [int(one) for one in text.split(",") if one.strip()]
    if any(number > 255 for number in numbers):
        raise NotATerm("a binary of what is more than a byte")
    return bytes(numbers)


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), text, flags=re.DOTALL)


def packed(term: Term) -> bytes:
    """Encode as `term_to_binary` does. Raises: NotATerm if an atom is too long."""
    return bytes([VERSION]) + _packed(term)


def _packed(term: Term) -> bytes:
    if isinstance(term, TermAtom):
        name = term.encode()
        if len(term) > 255:
            raise NotATerm("an atom has 255 characters at most")
        return (struct.pack(">BB", 119, len(name)) if len(name) < 256 else struct.pack(">BH", 118, len(name))) + name
    if isinstance(term, str):
        codes = [ord(one) for one in term]
        if not codes:
            return b"j"
        if max(codes) < 256 and len(codes) < 65536:
            return struct.pack(">BH", 107, len(codes)) + bytes(codes)
        return _packed(list[Term](codes))
    if isinstance(term, bytes):
        return struct.pack(">BI", 109, len(term)) + term
    if isinstance(term, float):
        return struct.pack(">Bd", 70, term)
    if isinstance(term, int):
        return _packed_integer(term)
    pieces = b"".join(_packed(one) for one in term)
    if isinstance(term, tuple):
        return (struct.pack(">BB", 104, len(term)) if len(term) < 256 else struct.pack(">BI", 105, len(term))) + pieces
    return struct.pack(">BI", 108, len(term)) + pieces + b"j" if term else b"j"


def _packed_integer(number: int) -> bytes:
    if 0 <= number < 256:
        return struct.pack(">BB", 97, number)
    if -(1 << 31) <= number < 1 << 31:
        return struct.pack(">Bi", 98, number)
    digits = abs(number).to_bytes((abs(number).bit_length() + 7) // 8, "little")
    if len(digits) > 255:
        raise NotATerm("an integer of more than 255 bytes")
    return struct.pack(">BBB", 110, len(digits), number < 0) + digits


def unpacked(data: bytes) -> Term:
    """Decode as `binary_to_term` does. Raises: NotATerm."""
    try:
        if data[0] != VERSION:
            raise NotATerm("no Erlang term")
        term, end = _unpacked(data, 1, 0)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise NotATerm("an Erlang term that is cut short") from error
    if end != len(data):
        raise NotATerm("more than one Erlang term")
    return term


def _unpacked(data: bytes, at: int, depth: int) -> tuple[Term, int]:
    """Return the term at `at`, and the position after it."""
    if depth > DEPTH_MAX:
        raise NotATerm("an Erlang term that is too deep")
    tag = data[at]
    at += 1
    if tag == 97:
        return data[at], at + 1
    if tag == 98:
        return struct.unpack_from(">i", data, at)[0], at + 4
    if tag == 110:
        end = at + 2 + data[at]
        number = int.from_bytes(_slice(data, at + 2, end), "little")
        return -number if data[at + 1] else number, end
    if tag == 70:
        return struct.unpack_from(">d", data, at)[0], at + 8
    if tag in (100, 118, 115, 119):
        wide = tag in (100, 118)
        size, at = (struct.unpack_from(">H", data, at)[0], at + 2) if wide else (data[at], at + 1)
        return TermAtom(_slice(data, at, at + size).decode("latin-1" if tag in (100, 115) else "utf-8")), at + size
    if tag == 107:
        end = at + 2 + struct.unpack_from(">H", data, at)[0]
        return _slice(data, at + 2, end).decode("latin-1"), end
    if tag == 109:
        end = at + 4 + struct.unpack_from(">I", data, at)[0]
        return _slice(data, at + 4, end), end
    if tag == 106:
        return [], at
    if tag not in (104, 105, 108):
        raise NotATerm(f"a kind of Erlang term that is not read here ({tag})")
    count, at = (data[at], at + 1) if tag == 104 else (struct.unpack_from(">I", data, at)[0], at + 4)
    items: list[Term] = []
    for _ in range(count):
        item, at = _unpacked(data, at, depth + 1)
        items.append(item)
    if tag != 108:
        return tuple(items), at
    tail, at = _unpacked(data, at, depth + 1)
    if tail != []:
        raise NotATerm("an improper list")
    return items, at


def _slice(data: bytes, start: int, end: int) -> bytes:
    if end > len(data):
        raise IndexError(end)
    return data[start:end]


def printed(term: Term) -> str:
    """Return the term as Erlang's `~p` prints it."""
    if isinstance(term, TermAtom):
        return str(term) if _ATOM.fullmatch(term) else "'" + _escaped(term, "'") + "'"
    if isinstance(term, str):
        return f'"{_escaped(term)}"' if term else "[]"
    if isinstance(term, bytes):
        try:
            text = term.decode("ascii")
        except UnicodeDecodeError:
            text = "\x00"
        if text.isprintable():
            return f'<<"{_escaped(text)}">>'
        return "<<" + ",".join(str(one) for one in term) + ">>"
    if isinstance(term, tuple):
        return "{" + ",".join(printed(one) for one in term) + "}"
    if isinstance(term, list):
        return "[" + ",".join(printed(one) for one in term) + "]"
    return repr(term)


def _escaped(text: str, quote: str = '"') -> str:
    text = text.replace("\\", "\\\\").replace(quote, "\\" + quote)
    return "".join(one if one.isprintable() else f"\\x{{{ord(one):x}}}" for one in text)


def erlang(value: Any) -> str:
    """Return a JSON value as tables show field tables: `[{"x-expires",1000}]`, texts in double quotes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, dict):
        return "[" + ",".join(f"{{{erlang(str(name))},{erlang(one)}}}" for name, one in value.items()) + "]"
    if isinstance(value, list):
        return "[" + ",".join(erlang(one) for one in value) + "]"
    return "undefined" if value is None else repr(value)


def term(value: Any) -> str:
    """Return a JSON value as a term: texts are binaries, objects are property lists with atoms as keys."""
    if isinstance(value, str):
        return f"<<{_quoted(value)}{'' if value.isascii() else '/utf8'}>>"
    if isinstance(value, dict):
        return "[" + ",".join(f"{{{atom(str(name))},{term(one)}}}" for name, one in value.items()) + "]"
    if isinstance(value, list | tuple):
        return "[" + ",".join(term(one) for one in value) + "]"
    return erlang(value)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{visible(escaped)}"'


def atom(name: str) -> str:
    """Return the text as an atom, with quotes if it needs them."""
    return name if _ATOM.fullmatch(name) else "'" + visible(name).replace("'", "\\'") + "'"


def field_table(value: dict[str, Any]) -> str:
    """Return a field table with AMQP types, as far as JSON has them. rabbit: `[{<<"x-max-length">>,long,10}]`."""
    return "[" + ",".join(f"{{{term(str(name))},{_field(one)}}}" for name, one in value.items()) + "]"


def _field(value: Any) -> str:
    if isinstance(value, bool):
        return f"bool,{erlang(value)}"
    if isinstance(value, dict):
        return f"table,{field_table(value)}"
    if isinstance(value, list):
        return "array,[" + ",".join(f"{{{_field(one)}}}" for one in value) + "]"
    kinds = {int: "long", float: "double", str: "longstr"}
    return f"{kinds.get(type(value), 'void')},{term(value)}"
