"""Hashes of passwords, for definitions."""

from __future__ import annotations

from typing import Final

from amqpd.cli.command import Command, Context

SALT_BYTES: Final = 4
HASHES: Final = ("sha512", "sha256")
"""Of RabbitMQ's hashes of passwords, those that are taken; see docs/definitions.md for amqpd's own."""


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


_MONITORING: Final = "Monitoring, observability and health checks"

COMMANDS: Final = (
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
        "list_hashes",
        _MONITORING,
        "Lists the hash functions of RabbitMQ's password hashes that are taken",
        list_hashes,
        examples=(("list_hashes", "sha512 and sha256"),),
        needs_app=False,
    ),
)
