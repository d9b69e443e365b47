"""Hashes of passwords, for definitions; and what encodes values of configuration files, which amqpd's are not."""

from __future__ import annotations

from typing import Final

from amqpd.cli.command import Command, Context
from amqpd.cli.errors import UNAVAILABLE, Failure

SALT_BYTES: Final = 4
HASHES: Final = ("sha512", "sha256")
"""Of RabbitMQ's hashes of passwords, those that are taken; see docs/security.md for amqpd's own."""


def hash_password(context: Context) -> None:
    """rabbit: base64 of a salt of 4 bytes and SHA-256 over salt and password; `password_hash` of a user takes it."""
    import base64
    import hashlib
    import os

    password = context.password(0)
    context.say("Will hash the password")
    salt = os.urandom(SALT_BYTES)
    text = base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode("ascii")
    context.answer({"result": "ok", "value": text, "hashing_algorithm": "rabbit_password_hashing_sha256"}, text)


def list_hashes(context: Context) -> None:
    context.say("Listing supported hash algorithms ...")
    context.answer({"node": context.node, "result": "ok", "value": list(HASHES)}, "[" + ",".join(HASHES) + "]")


def list_ciphers(context: Context) -> None:
    context.say("Listing supported ciphers ...")
    context.answer({"node": context.node, "result": "ok", "value": []}, "[]")


def no_encoding(context: Context) -> None:
    """Raises: Failure."""
    raise Failure(
        UNAVAILABLE,
        "amqpd reads no encrypted values from its configuration. Keep a secret out of the file: give it as a variable "
        "of the environment (AMQPD_DEFAULT__PASSWORD), see 'amqpd --help'",
    )


_GROUP: Final = "Configuration and Environment"
_MONITORING: Final = "Monitoring, observability and health checks"

COMMANDS: Final = (
    Command(
        "decode",
        _GROUP,
        "Decrypts a value of a configuration file: amqpd's has none",
        no_encoding,
        "<value> <passphrase>",
        0,
        2,
        (("<value> <passphrase>", "what RabbitMQ would decrypt"),),
        examples=(("decode value passphrase", "69, and what to do instead"),),
        needs_app=False,
    ),
    Command(
        "encode",
        _GROUP,
        "Encrypts a value for a configuration file: amqpd's has none",
        no_encoding,
        "<value> <passphrase>",
        0,
        2,
        (("<value> <passphrase>", "what RabbitMQ would encrypt"),),
        examples=(("encode value passphrase", "69, and what to do instead"),),
        needs_app=False,
    ),
    Command(
        "hash_password",
        "Users",
        "Hashes a password as RabbitMQ does, for the password_hash of definitions",
        hash_password,
        "[<password>]",
        0,
        1,
        (("<password>", "read from standard input, or asked for, when missing"),),
        examples=(("-q hash_password s3cret", "another salt, and another text, each time; asks no broker"),),
        needs_app=False,
    ),
    Command(
        "list_ciphers",
        _MONITORING,
        "Lists the ciphers of encode and decode: there are none",
        list_ciphers,
        examples=(("list_ciphers", "an empty list; cipher_suites has those of TLS"),),
        needs_app=False,
    ),
    Command(
        "list_hashes",
        _MONITORING,
        "Lists the hash functions of RabbitMQ's password hashes that are taken",
        list_hashes,
        examples=(("list_hashes", "sha512 and sha256"),),
        needs_app=False,
    ),
)
