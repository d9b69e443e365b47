"""`encode` and `decode`: values of a configuration file, encrypted with a passphrase as RabbitMQ does it.

amqpd reads no encrypted values: a secret is a variable of the environment or a file of its own. A user who moves from
RabbitMQ must read such values, and may need new ones for other brokers.

Format: base64 of 16 bytes of salt, 16 bytes of initialisation vector, and AES-CBC over the term (`term_to_binary`),
padded to 16 bytes; older versions pad to 32, which `decode` accepts. The key is PBKDF2 of the passphrase. AES comes
from the package `cryptography`, which nothing else of amqpd needs: it is imported when one of the commands runs.

Source: RabbitMQ 3.10.8, https://www.rabbitmq.com/docs/configure#configuration-encryption.
"""

from __future__ import annotations

from typing import Final

from amqpd.cli.command import CONFIGURATION, MONITORING, Context, command
from amqpd.cli.erlang import NotATerm, Term, packed, parse, printed, unpacked
from amqpd.cli.errors import DATA, UNAVAILABLE, Failure, UsageError

CIPHERS: Final = {"aes_128_cbc": 16, "aes_192_cbc": 24, "aes_256_cbc": 32}
"""Cipher -> bytes of its key."""
_OLDER: Final = {"aes_cbc": "aes_128_cbc", "aes_cbc128": "aes_128_cbc", "aes_cbc256": "aes_256_cbc"}
HASHES: Final = {
    "sha": "sha1", "sha224": "sha224", "sha256": "sha256", "sha384": "sha384", "sha512": "sha512",
    "sha3_224": "sha3_224", "sha3_256": "sha3_256", "sha3_384": "sha3_384", "sha3_512": "sha3_512", "md5": "md5",
}  # fmt: skip
"""Erlang's name of a hash -> Python's name."""
SALT_BYTES: Final = 16
BLOCK_BYTES: Final = 16
PADDED_MAX: Final = 32
"""rabbit: before 3.8 the padding was up to twice the block size."""
DEFAULTS: Final = (("aes_128_cbc", "sha256", 1), ("aes_256_cbc", "sha512", 1000))
"""Default cipher, hash and iterations: of RabbitMQ 3.10.8 (measured), and of older versions (in its guide)."""
ITERATIONS_MAX: Final = 10_000_000
WRONG: Final = (
    "Failed to decrypt the value. Things to check: is the passphrase correct? Are the cipher and hash algorithms the "
    "same as those used for encryption?"
)


class Undecipherable(ValueError):
    """The value was made with another passphrase, cipher, hash or number of iterations, or is not encrypted."""


def encrypt(data: bytes, passphrase: str, cipher: str, algorithm: str, iterations: int) -> str:
    """Return the base64 text. Cost: `iterations` hashes, some ms for 1,000."""
    import base64
    import os

    salt, start = os.urandom(SALT_BYTES), os.urandom(BLOCK_BYTES)
    size = BLOCK_BYTES - len(data) % BLOCK_BYTES
    padded = data + bytes([size]) * size
    return base64.b64encode(
        salt + start + _aes(True, _key(passphrase, salt, cipher, algorithm, iterations), start, padded)
    ).decode("ascii")


def decrypt(text: str | bytes, passphrase: str, cipher: str, algorithm: str, iterations: int) -> bytes:
    """Return the plain data. Raises: Undecipherable."""
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
    """Encrypt or decrypt whole blocks. Raises: Failure if the package is missing."""
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
    """Return cipher, hash and iterations of the command line. Raises: UsageError."""
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
    """Return the second operand, or a line of standard input. Raises: Failure (rabbit: 69) without a passphrase."""
    try:
        return context.password(1)
    except Failure:
        raise Failure(UNAVAILABLE, "Passphrase is not provided via argument or stdin") from None


_USAGE: Final = "<value> [<passphrase>] [--cipher <cipher>] [--hash <hash>] [--iterations <number>]"
_PASSPHRASE: Final = ("<passphrase>", "passphrase for the key; without it, amqpctl reads standard input or asks")


@command(
    CONFIGURATION,
    "Encrypts a value for RabbitMQ's configuration file; amqpd does not read encrypted values",
    _USAGE,
    (("<value>", "an Erlang term: '\"text\"', '<<\"text\">>', a number"), _PASSPHRASE),
    examples=(("encode '<<\"guest\">>' secret", "a different text each time; needs the package cryptography"),),
    needs_app=False,
)
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


@command(
    CONFIGURATION,
    "Decrypts a value of RabbitMQ's configuration file",
    _USAGE,
    (("<value>", '{encrypted,<<"...">>}, <<"...">> or encrypted:..., as in the configuration file'), _PASSPHRASE),
    examples=(("decode encrypted:c2FsdA== secret", "the plain value; needs the package cryptography"),),
    needs_app=False,
)
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
    """Return the term in a value, by the first of `ways` (cipher, hash, iterations) that fits. Raises: Failure (69)."""
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


@command(
    MONITORING,
    "Lists the ciphers for encode and decode",
    "",
    examples=(("list_ciphers", "AES-CBC; for TLS see cipher_suites"),),
    needs_app=False,
)
def list_ciphers(context: Context) -> None:
    context.info("Listing supported ciphers ...")
    context.answer({"node": context.node, "result": "ok", "value": list(CIPHERS)}, "[" + ",".join(CIPHERS) + "]")
