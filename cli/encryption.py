"""`encode` and `decode`: values of a configuration file, encrypted with a passphrase as RabbitMQ encrypts them.

amqpd reads no encrypted values: a secret is a variable of the environment, or a file of its own. Who comes from
RabbitMQ has such values, needs what is in them, and may go on making them for brokers that read them. The format is
RabbitMQ's: base64 of 16 bytes of salt, 16 of the initialisation vector and AES in CBC over the packed term, padded to
16 bytes (32 in older versions, which is read too); the key is PBKDF2 of the passphrase. AES is the package
`cryptography`, which nothing else of amqpd needs: it is asked for when it is missing.

Source: RabbitMQ 3.10.8, https://www.rabbitmq.com/docs/configure#configuration-encryption.

Erlang's terms: as they are typed, as bytes (`term_to_binary`), and as they are printed.

RabbitMQ encrypts values of its configuration as terms, so whoever reads or makes one needs them. What there is: atoms,
integers, floats, strings, binaries, tuples, lists. A string is a list of numbers in Erlang, and here a str.

Source: https://www.erlang.org/doc/apps/erts/erl_ext_dist.html; read back by Erlang 25 in the tests beside RabbitMQ.
"""

from __future__ import annotations

import re
import struct
from typing import Final, TypeAlias

from amqpd.cli.command import Command, Context
from amqpd.cli.errors import DATA, UNAVAILABLE, Failure, UsageError

CIPHERS: Final = {"aes_128_cbc": 16, "aes_192_cbc": 24, "aes_256_cbc": 32}
"""By name, how many bytes the key has."""
_OLDER: Final = {"aes_cbc": "aes_128_cbc", "aes_cbc128": "aes_128_cbc", "aes_cbc256": "aes_256_cbc"}
HASHES: Final = {
    "sha": "sha1", "sha224": "sha224", "sha256": "sha256", "sha384": "sha384", "sha512": "sha512",
    "sha3_224": "sha3_224", "sha3_256": "sha3_256", "sha3_384": "sha3_384", "sha3_512": "sha3_512", "md5": "md5",
}  # fmt: skip
"""Erlang's names, and Python's."""
SALT_BYTES: Final = 16
BLOCK_BYTES: Final = 16
PADDED_MAX: Final = 32
"""rabbit: before 3.8 it filled up to twice what the cipher needs."""
DEFAULTS: Final = (("aes_128_cbc", "sha256", 1), ("aes_256_cbc", "sha512", 1000))
"""Cipher, hash, iterations where none are asked for: of RabbitMQ 3.10.8 (measured), and of older versions, which its
guide still tells of."""
ITERATIONS_MAX: Final = 10_000_000
WRONG: Final = (
    "Failed to decrypt the value. Things to check: is the passphrase correct? Are the cipher and hash algorithms the "
    "same as those used for encryption?"
)


class Undecipherable(ValueError):
    """Not made with this passphrase, cipher, hash and number of iterations, or not made so at all."""


def encrypt(data: bytes, passphrase: str, cipher: str, algorithm: str, iterations: int) -> str:
    """The base64 text. cipher, algorithm: of CIPHERS, HASHES. Cost: `iterations` hashes, some ms for 1,000."""
    import base64
    import os

    salt, start = os.urandom(SALT_BYTES), os.urandom(BLOCK_BYTES)
    size = BLOCK_BYTES - len(data) % BLOCK_BYTES
    padded = data + bytes([size]) * size
    return base64.b64encode(
        salt + start + _aes(True, _key(passphrase, salt, cipher, algorithm, iterations), start, padded)
    ).decode("ascii")


def decrypt(text: str | bytes, passphrase: str, cipher: str, algorithm: str, iterations: int) -> bytes:
    """Raises: Undecipherable."""
    import base64
    import binascii

    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Undecipherable from error
    salt, start, body = data[:SALT_BYTES], data[SALT_BYTES : SALT_BYTES + BLOCK_BYTES], data[SALT_BYTES + BLOCK_BYTES :]
    if not body or len(body) % BLOCK_BYTES:
        raise Undecipherable
    padded = _aes(False, _key(passphrase, salt, cipher, algorithm, iterations), start, body)
    size = padded[-1]
    if not 0 < size <= PADDED_MAX or padded[-size:] != bytes([size]) * size:
        raise Undecipherable
    return padded[:-size]


def _key(passphrase: str, salt: bytes, cipher: str, algorithm: str, iterations: int) -> bytes:
    import hashlib

    return hashlib.pbkdf2_hmac(HASHES[algorithm], passphrase.encode(), salt, iterations, CIPHERS[cipher])


def _aes(encrypts: bool, key: bytes, start: bytes, data: bytes) -> bytes:
    """Raises: Failure where the package is missing."""
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    except ImportError:
        raise Failure(
            UNAVAILABLE, "encode and decode need the package cryptography: pip install cryptography"
        ) from None
    found = Cipher(algorithms.AES(key), modes.CBC(start))
    work = found.encryptor() if encrypts else found.decryptor()
    return work.update(data) + work.finalize()


def _how(context: Context, default: tuple[str, str, int] = DEFAULTS[0]) -> tuple[str, str, int]:
    """Cipher, hash and number of iterations of the command line. Raises: UsageError."""
    given = context.line.given
    cipher = given.get("cipher", default[0])
    cipher = _OLDER.get(cipher, cipher)
    algorithm = given.get("hash", default[1])
    iterations = context.line.number("iterations") if "iterations" in given else default[2]
    if cipher not in CIPHERS:
        raise UsageError("Bad argument: The requested cipher is not supported.", DATA)
    if algorithm not in HASHES:
        raise UsageError("Bad argument: The requested hash is not supported", DATA)
    if not 0 < iterations <= ITERATIONS_MAX:
        raise UsageError("Bad argument: The requested number of iterations is incorrect", DATA)
    return cipher, algorithm, iterations


def _passphrase(context: Context) -> str:
    """The second operand, or a line of standard input. Raises: Failure; rabbit: 69 for none."""
    try:
        return context.password(1)
    except Failure:
        raise Failure(UNAVAILABLE, "Passphrase is not provided via argument or stdin") from None


def encode(context: Context) -> None:

    value = context.operands[0]
    cipher, algorithm, iterations = _how(context)
    context.info("Encrypting value ...")
    passphrase = _passphrase(context)
    try:
        data = packed(parse(value))
    except NotATerm as error:
        text = f"Error during cipher operation: {error}. A text is '\"text\"' or '<<\"text\">>'"
        raise Failure(UNAVAILABLE, text) from None
    text = encrypt(data, passphrase, cipher, algorithm, iterations)
    if context.line.formatter == "json":
        context.answer({"result": "ok", "value": f"encrypted:{text}"}, "")
    else:
        context.out.write("{encrypted," + printed(text.encode("ascii")) + "}\n")


def decode(context: Context) -> None:

    value = context.operands[0]
    ways = dict.fromkeys(_how(context, default) for default in DEFAULTS)
    context.info("Decrypting value ...")
    passphrase = _passphrase(context)
    term = _decoded(value, passphrase, tuple(ways))
    if context.line.formatter == "json":
        plain = term.decode("utf-8", "backslashreplace") if isinstance(term, bytes) else term
        context.answer({"result": "ok", "value": printed(term) if isinstance(plain, tuple | list) else plain}, "")
    else:
        context.out.write(printed(term) + "\n")


def _decoded(value: str, passphrase: str, ways: tuple[tuple[str, str, int], ...]) -> Term:
    """What is in a value, by the first of the ways that fits. Raises: Failure (69)."""

    try:
        text: object = value.partition(":")[2] if value.startswith("encrypted:") else parse(value)
    except NotATerm:
        raise Failure(UNAVAILABLE, WRONG) from None
    if isinstance(text, tuple) and len(text) == 2 and text[0] == "encrypted":
        text = text[1]
    if isinstance(text, str | bytes):
        for way in ways:
            try:
                return unpacked(decrypt(text, passphrase, *way))
            except (NotATerm, Undecipherable):
                continue
    raise Failure(UNAVAILABLE, WRONG)


def list_ciphers(context: Context) -> None:
    context.info("Listing supported ciphers ...")
    context.answer({"node": context.node, "result": "ok", "value": list(CIPHERS)}, "[" + ",".join(CIPHERS) + "]")


_GROUP: Final = "Configuration and Environment"
_OPTIONS: Final = ("cipher", "hash", "iterations")
_USAGE: Final = "<value> [<passphrase>] [--cipher <cipher>] [--hash <hash>] [--iterations <number>]"
_PASSPHRASE: Final = ("<passphrase>", "what the key is made of; read from standard input, or asked for, when missing")

COMMANDS: Final = (
    Command(
        "decode",
        _GROUP,
        "Decrypts a value of a configuration file of RabbitMQ",
        decode,
        _USAGE,
        1,
        2,
        (("<value>", '{encrypted,<<"...">>}, <<"...">> or encrypted:..., as it is written in the file'), _PASSPHRASE),
        _OPTIONS,
        examples=(("decode encrypted:c2FsdA== secret", "what is in it; needs the package cryptography"),),
        needs_app=False,
    ),
    Command(
        "encode",
        _GROUP,
        "Encrypts a value as RabbitMQ's configuration files have it; amqpd's have variables instead",
        encode,
        _USAGE,
        1,
        2,
        (("<value>", "an Erlang term: '\"text\"', '<<\"text\">>', a number"), _PASSPHRASE),
        _OPTIONS,
        examples=(("encode '<<\"guest\">>' secret", "another text each time; needs the package cryptography"),),
        needs_app=False,
    ),
    Command(
        "list_ciphers",
        "Monitoring, observability and health checks",
        "Lists the ciphers of encode and decode",
        list_ciphers,
        examples=(("list_ciphers", "those of AES in CBC; cipher_suites has those of TLS"),),
        needs_app=False,
    ),
)


class TermAtom(str):
    """`name` or `'a name'`."""

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
_PLAIN_ATOM: Final = re.compile("[a-z][A-Za-z0-9_@]*")


class NotATerm(ValueError):
    """The text, or the bytes, are none of those above."""


def parse(text: str) -> Term:
    """A term as it is typed; a full stop may follow. Raises: NotATerm."""
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
    """The first of what is left; tokens stand last first."""
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
    """`term_to_binary`. Raises: NotATerm for what is too large for it."""
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
    """`binary_to_term`. Raises: NotATerm."""
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
    """The term at `at`, and where it ends."""
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
    """As Erlang's `~p` has it."""
    if isinstance(term, TermAtom):
        return str(term) if _PLAIN_ATOM.fullmatch(term) else "'" + _escaped(term, "'") + "'"
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
