"""Places of a shared checkpoint that several machines reach: a directory, or an object store.

A place has one document, the state of the export. A process replaces it only if no other process has replaced it since
it was read. No lock is needed, so a process that is paused at any moment stops no other.

    directory        <checkpoint>/shared/<number>.json    versions; the one with the largest number counts
                     <checkpoint>/beats/<token>           signs of life of owners
                     <checkpoint>/staging/<attempt>/      files without final names
    object store     <checkpoint>/state.json              replaced on the condition of its ETag
                     <checkpoint>/beats/<token>
                     <checkpoint>/staging/<attempt>/<number>.staged    copied to their final names in the store
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

from amqpd.storage.export.checkpoint import NO_LINKS, SHARED, CheckpointError, create_once, sync_path
from amqpd.storage.export.object_store import ObjectStore

VERSIONS: Final = 64
"""Old versions of the state that stay in a directory."""
STAGING: Final = "staging"
BEATS: Final = "beats"


class SharedDirectory:
    """A directory that all machines reach, such as one of NFS.

    Each version is a file. A hard link gives it its number, which fails if the number is taken. A process that was
    paused may take a number that was removed meanwhile. It finds out, because the version before is gone, too.
    """

    def __init__(self, directory: Path) -> None:
        self._root = directory
        self._versions = directory / SHARED
        self._versions.mkdir(parents=True, exist_ok=True)
        (directory / BEATS).mkdir(exist_ok=True)
        for left in self._versions.glob(".*"):  # of a killed process; one that is alive writes its file again
            left.unlink(missing_ok=True)

    def read(self) -> tuple[bytes, str] | None:
        """Return the document and its version; None if there is none."""
        while True:
            numbers = self._numbers()
            if not numbers:
                return None
            with suppress(FileNotFoundError):  # it was replaced VERSIONS times meanwhile
                data = self._path(numbers[-1]).read_bytes()
                return data, f"{numbers[-1]}:{_digest(data)}"

    def _numbers(self) -> list[int]:
        return sorted(int(path.stem) for path in self._versions.glob("*.json") if path.stem.isdigit())

    def _path(self, number: int) -> Path:
        return self._versions / f"{number:020d}.json"

    def replace(self, data: bytes, version: str | None) -> bool:
        """Replace the document if it has this version; None: there must be none. No two documents may be equal.

        Returns: False if it has another version, or if it is unknown whether the document was replaced.
        """
        number, _, before = (version or "0:").partition(":")
        try:
            if not create_once(self._path(int(number) + 1), data):
                return False
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            raise CheckpointError(
                f"the checkpoint {self._root}: its file system has no hard links, so it cannot be shared: use another"
            ) from error
        sync_path(self._versions)
        if version is not None and not self._is_there(int(number), before):
            return False
        for old in self._numbers():
            if old > int(number) - VERSIONS:
                break
            self._path(old).unlink(missing_ok=True)
        return True

    def _is_there(self, number: int, content: str) -> bool:
        """Return whether a version has not been removed. Versions are removed in their order."""
        try:
            return _digest(self._path(number).read_bytes()) == content
        except FileNotFoundError:
            return False

    def beat(self, token: str, count: int) -> None:
        """Write an owner's sign of life."""
        (self._root / BEATS / token).write_text(str(count))

    def beats(self, tokens: Iterable[str]) -> dict[str, str | None]:
        """Return the newest sign of life of each owner; None if there is none."""
        found: dict[str, str | None] = {}
        for token in tokens:
            try:
                found[token] = (self._root / BEATS / token).read_text()
            except FileNotFoundError:
                found[token] = None
        return found

    def left(self) -> set[str]:
        """Return the names of attempts and tokens that have files or signs of life."""
        found = {path.name for path in (self._root / BEATS).iterdir()}
        if (self._root / STAGING).exists():
            found |= {path.name for path in (self._root / STAGING).iterdir()}
        return found

    def remove(self, name: str) -> None:
        """Remove the files of an attempt, and the sign of life of the token with this name."""
        (self._root / BEATS / name).unlink(missing_ok=True)
        shutil.rmtree(self._root / STAGING / name, ignore_errors=True)  # a paused process may still write there


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class SharedStore:
    """An object store with conditional writes. Methods are those of SharedDirectory."""

    def __init__(self, url: str) -> None:
        self._store = ObjectStore(url)

    def read(self) -> tuple[bytes, str] | None:
        return self._store.read("state.json")

    def replace(self, data: bytes, version: str | None) -> bool:
        return self._store.replace("state.json", data, version) is not None

    def beat(self, token: str, count: int) -> None:
        self._store.write(f"{BEATS}/{token}", str(count).encode())

    def beats(self, tokens: Iterable[str]) -> dict[str, str | None]:
        found = {token: self._store.read(f"{BEATS}/{token}") for token in tokens}
        return {token: None if content is None else content[0].decode() for token, content in found.items()}

    def left(self) -> set[str]:
        return {name.split("/")[1] for folder in (BEATS, STAGING) for name, _ in self._store.sizes(folder)}

    def remove(self, name: str) -> None:
        staged = [path for path, _ in self._store.sizes(f"{STAGING}/{name}")]
        self._store.delete([f"{BEATS}/{name}", *staged])


SharedPlace: TypeAlias = SharedDirectory | SharedStore


class SharedObjects(ObjectStore):
    """The objects of a shared export. A batch is staged in the store, and copied there to its final names.

    So any process can complete the batch of another one, with the same bytes.

    Args:
        folder: The checkpoint's path below `url`.
    """

    def __init__(self, url: str, folder: str) -> None:
        super().__init__(url)
        self._folder = folder

    def share(self, moves: list[list[str]], attempt: str) -> list[list[str]]:
        """Upload staged files to the store. Return the names of the staged objects, with their final names."""
        staged = [f"{self._folder}/{STAGING}/{attempt}/{number:05d}.staged" for number in range(len(moves))]
        super().publish([[path, name] for (path, _), name in zip(moves, staged, strict=True)])
        return [[name, final] for name, (_, final) in zip(staged, moves, strict=True)]

    def publish(self, moves: list[list[str]]) -> None:
        for staged, final in moves:
            if not self.copy(staged, final):
                raise CheckpointError(f"{staged} does not exist any more: the batch was finished, or it was deleted")
