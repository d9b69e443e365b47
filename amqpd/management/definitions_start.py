"""Definitions that are imported at each start, before anything listens: `load_definitions`, a file or a directory.

Of a directory the files that end in .json, by name, hidden ones left out. Each is one import: all of it or nothing.
The first that cannot be ends the start, and what those before it made stays: the next start imports all of them again,
as RabbitMQ does. With `definitions.skip_if_unchanged` a global parameter, RabbitMQ's, keeps the hash of what was
imported last; it is set behind the last file, so that a crash in between costs one more import.

A reload of the settings imports them once more, where a byte of them has changed since: what they name becomes as they
say, and what they no longer name stays.
"""

from __future__ import annotations

import asyncio
import hashlib
from codecs import getincrementaldecoder
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from amqpd.broker.vhost.parameters import IMPORTED_HASH
from amqpd.broker.vhost.pending import DeclarationPending, wait_done
from amqpd.management.definitions import DefinitionsError
from amqpd.management.definitions_import import import_document, log
from amqpd.management.json_body import parse
from amqpd.management.request import ApiError

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.broker.vhost.pending import Done
    from amqpd.config import DefaultSettings, DefinitionsSettings

SUFFIX: Final = ".json"
PIECE_BYTES: Final = 256 * 1024
"""A step that holds the interpreter lock: some 0.1 ms."""


async def import_files(broker: Broker, path: Path, settings: DefinitionsSettings, known: str = "") -> str:
    """Returns their hash, when all of it is made. known: the hash of what this process has imported.

    Raises: DefinitionsError, MetadataError.
    """
    # In a thread: a reload happens while clients are served, and a disk may take its time.
    files, found = await asyncio.to_thread(_read, path)
    if settings.skip_if_unchanged and not known:
        known = str(broker.global_parameters.get(IMPORTED_HASH))
    if found == known:
        log.info("%s: unchanged since it was imported", path)
        return found
    for name, text in files:
        await _import(broker, name, text, settings.skip_unsupported)
    if settings.skip_if_unchanged:
        await wait_done(partial(_remember, broker, found))
    return found


async def import_first(broker: Broker, first: DefaultSettings) -> None:
    """The user and vhost of a first start, where there is neither. Raises: DefinitionsError, MetadataError."""
    permission = {"configure": first.configure, "write": first.write, "read": first.read}
    document = {
        "users": [{"name": first.user, "password": first.password, "tags": list(first.tags)}],
        "vhosts": [{"name": first.vhost, "description": "Default virtual host"}],
        "permissions": [{"user": first.user, "vhost": first.vhost, **permission}],
    }
    try:
        await import_document(broker, document, "settings default.*", None, False)
    except ApiError as error:
        raise DefinitionsError(f"default.*: {error.reason}") from None


def _remember(broker: Broker, found: str, done: Done) -> None:
    broker.global_parameters.declare(IMPORTED_HASH, found, done)


def _read(path: Path) -> tuple[list[tuple[str, str | None]], str]:
    """Return name and text of each file, None for one that is not UTF-8, and the hash of all. Raises: DefinitionsError.

    Hashing gives the interpreter lock up, and a file is decoded in pieces: the loop never waits long for this thread.
    """
    try:
        names = [path]
        if path.is_dir():
            found = (each for each in path.iterdir() if each.suffix == SUFFIX and not each.name.startswith("."))
            names = sorted(each for each in found if each.is_file())
            if not names:
                log.warning("%s: the directory has no file that ends in %s", path, SUFFIX)
        contents = [(str(each), each.read_bytes()) for each in names]
    except OSError as error:
        raise DefinitionsError(f"{error.filename or path}: {error.strerror}") from None
    digest = hashlib.sha256()
    for name, content in contents:
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return [(name, _decoded(content)) for name, content in contents], digest.hexdigest()


def _decoded(content: bytes) -> str | None:
    decoder = getincrementaldecoder("utf-8-sig")()
    try:
        pieces = [decoder.decode(content[at : at + PIECE_BYTES]) for at in range(0, len(content), PIECE_BYTES)]
        return "".join([*pieces, decoder.decode(b"", True)])
    except UnicodeDecodeError:
        return None


async def _import(broker: Broker, name: str, text: str | None, skip: bool) -> None:
    if text is None:
        raise DefinitionsError(f"{name}: not JSON: not UTF-8")
    try:
        document = await parse(text or "{}", True)
    except ApiError as error:
        raise DefinitionsError(f"{name}: {error.reason}") from None
    except ValueError as error:
        raise DefinitionsError(f"{name}: not JSON: {error}") from None
    if not isinstance(document, dict):
        raise DefinitionsError(f"{name}: definitions are a JSON object")
    while True:
        try:
            await import_document(broker, document, name, None, skip)
            return
        except DeclarationPending as held:
            await held.over()  # what a crash left to delete has that name still
        except ApiError as error:
            raise DefinitionsError(f"{name}: {error.reason}") from None
