"""Import of definitions at each start, before the listeners open (`load_definitions`: a file or a directory).

In a directory, all files that end in .json are imported in the order of their names, except hidden ones. Each file
is one import: all or nothing. A file that fails ends the start. The imports before it stay; the next start imports
all files again, as RabbitMQ does. With `definitions.skip_if_unchanged`, a global parameter of RabbitMQ's name
stores the hash of the files after the last import. A crash before that only costs one more import.

A reload of the settings imports the files again if their bytes have changed. Objects that they no longer contain
stay.
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
from amqpd.management.json_body import parse_json
from amqpd.management.request import ApiError

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.config.schema import DefaultSettings, DefinitionsSettings

SUFFIX: Final = ".json"
PIECE_BYTES: Final = 256 * 1024
"""Bytes decoded in one step with the interpreter lock: about 0.1 ms."""


async def import_files(broker: Broker, path: Path, settings: DefinitionsSettings, known: str = "") -> str:
    """Import all files and return their hash.

    Args:
        known: the hash of the files that this process imported last.

    Raises: DefinitionsError, MetadataError.
    """
    # In a thread: during a reload, a slow disk must not block clients.
    files, files_hash = await asyncio.to_thread(_read, path)
    if settings.skip_if_unchanged and not known:
        known = str(broker.global_parameters.get(IMPORTED_HASH))
    if files_hash == known:
        log.info("%s: not imported: unchanged since the last import", path)
        return files_hash
    for name, text in files:
        await _import(broker, name, text, settings.skip_unsupported)
    if settings.skip_if_unchanged:
        await wait_done(partial(broker.global_parameters.declare, IMPORTED_HASH, files_hash))
    return files_hash


async def import_first(broker: Broker, first: DefaultSettings) -> None:
    """Create the user and vhost of a first start. Raises: DefinitionsError, MetadataError."""
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


def _read(path: Path) -> tuple[list[tuple[str, str | None]], str]:
    """Return name and text of each file (None if it is not UTF-8), and the hash of all files.

    Hashing releases the interpreter lock, and files are decoded in pieces, so this thread never blocks the loop for
    long. Raises: DefinitionsError.
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
    return [(name, _decode(content)) for name, content in contents], digest.hexdigest()


def _decode(content: bytes) -> str | None:
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
        document = await parse_json(text or "{}", True)
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
        except DeclarationPending as pending:
            await pending.wait_in_task()  # an object with that name is still being deleted after a crash
        except ApiError as error:
            raise DefinitionsError(f"{name}: {error.reason}") from None
