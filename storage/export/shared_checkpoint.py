"""Checkpoint of a shared export: several processes, on several machines, work at one export.

Each process claims batches in the state (claims.py), which lies in a directory or an object store (shared_place.py).

A batch is fixed before it gets its final names: any process can complete it, and all give it the same ones. So a
process that was killed or paused at any moment leaves a batch that is either written again by another process or
completed by it.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

from amqpd.storage.export import claims
from amqpd.storage.export.checkpoint import (
    SCHEMA_FILE,
    CheckpointError,
    ExportCheckpoint,
    KnownExport,
    Progress,
    State,
    check_identity,
    is_shared,
    lock_checkpoint,
    read_checkpoint,
    read_unshared,
)
from amqpd.storage.export.claims import LOOKS, Claim, LifeWatch, SharedState
from amqpd.storage.export.object_store import is_object_store
from amqpd.storage.export.shared_place import STAGING, SharedDirectory, SharedPlace, SharedStore

logger = logging.getLogger(__name__)

TAKE_OVER_S: Final = 30.0
BACKOFF_MS: Final = 50
LOCK_S: Final = 10.0
_LOCAL: Final = ".amqpd-shared-export-"
"""Start of the names of local directories. All with such a name and no lock are removed, so it must be no user's."""
T = TypeVar("T")


def known_export(directory: Path) -> KnownExport:
    """Return an export, shared or not, as its checkpoint describes it now. Raises CheckpointError, OSError."""
    found = SharedDirectory(directory).read() if is_shared(directory) else None
    if found is None:
        return read_checkpoint(directory)
    state = _parsed(found[0], directory)
    moves = [move for claim in state.claims for move in claim.moves or []]
    return KnownExport(state.id, state.what, frozenset(final.rpartition("/")[2] for _, final in moves))


def _parsed(data: bytes, place: str | Path) -> SharedState:
    try:
        return SharedState.from_json(json.loads(data))
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(f"the state of {place} is damaged, or another version has written it") from None


class LifeThread:
    """A thread that writes this process's signs of life, and looks at those of others.

    Args:
        place: The checkpoint's place.
        beat_s: Time between two signs, and between two looks.

    Attributes:
        watch: The looks at others.
    """

    def __init__(self, place: SharedPlace, beat_s: float, read: Callable[[], SharedState]) -> None:
        self.beat_s = beat_s
        self._token = ""
        self._lock = threading.Lock()
        self.watch = LifeWatch(beat_s)
        self._place = place
        self._read = read
        self._count = 0
        self._has_failed = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="amqpd-export-life", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self.beat_s):
            try:
                self.turn()
                self._has_failed = False
            except Exception as error:  # a bug must not end the thread: it would take over nothing any more
                if not self._has_failed:
                    known = isinstance(error, (OSError, CheckpointError))
                    text = "no sign of life was written: another process may take over the batch: %s"
                    logger.warning(text, error, exc_info=not known)
                self._has_failed = True

    def work_for(self, token: str) -> None:
        """Write the signs of life of the claim with this token; "": of none. One that is being written ends first."""
        with self._lock:
            self._token = token

    def turn(self) -> None:
        """Write a sign of life, and look at those of the other owners. Raises CheckpointError, OSError."""
        with self._lock:
            token = self._token
            if token:
                self._count += 1
                self._place.beat(token, self._count)
        others = [claim.token for claim in self._read().claims if claim.token not in ("", token)]
        self.watch.look(self._place.beats(others))

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


class SharedCheckpoint:
    """An open checkpoint of a shared export.

    Args:
        checkpoint: A directory, or the URL of an object store.
        what: The export's identity. It must equal that of all processes.
        take_over_s: Others may take over a claim of this process if it shows no life for so long.

    Methods raise CheckpointError and OSError, and those with a claim StaleOwner.

    Attributes:
        shared: The state at the last look.
    """

    is_shared: ClassVar[bool] = True

    def __init__(self, checkpoint: str, what: dict[str, Any], take_over_s: float = TAKE_OVER_S) -> None:
        self._checkpoint = checkpoint
        self.schema_place = f"the state of {checkpoint}"
        self._what = json.loads(json.dumps(what))
        self._owner = f"{socket.gethostname()}, process {os.getpid()}"
        self._claim: Claim | None = None
        self._progress: Progress | None = None
        self._place: SharedPlace
        self._local_lock = -1
        if is_object_store(checkpoint):
            self._place = SharedStore(checkpoint)
            self.directory, self._local_lock = _local_directory()
        else:
            self.directory = Path(checkpoint)
            self._place = SharedDirectory(self.directory)
        try:
            self.shared = self._opened()
            self.id = self.shared.id
            self._sweep()
        except BaseException:
            self._remove_local_directory()
            raise
        self.life = LifeThread(self._place, take_over_s / LOOKS, lambda: self._read()[0])

    # -- the state

    def _opened(self) -> SharedState:
        """Return the state. It is created if there is none, or if the one that is there has begun nothing."""
        while True:
            found = self._place.read()
            if found is None:
                self._create()
                continue
            state = _parsed(found[0], self._checkpoint)
            if state.is_checked or state.what == self._what:
                check_identity(self._checkpoint, state.what, self._what)
                return state
            self._replace(SharedState(secrets.token_hex(4), self._what), found[1])

    def _create(self) -> None:
        """Write the first state, which is that of an earlier export without --share if there was one."""
        first = SharedState(secrets.token_hex(4), self._what)
        if not isinstance(self._place, SharedDirectory):
            self._replace(first, None)
            return
        # Another process may create the state now. An export that is not shared has the lock for longer.
        lock = lock_checkpoint(self.directory, "export", LOCK_S)
        try:
            before = read_unshared(self.directory, self._what)
            if before is not None:
                first.is_checked = True
                first.id, old = before
                first.batch, first.position, first.rows, first.bytes = old.batch, old.position, old.rows, old.bytes
                schema = self.directory / SCHEMA_FILE
                first.schema = schema.read_text(encoding="utf-8") if schema.exists() else None
            self._replace(first, None)
        finally:
            os.close(lock)

    def _read(self) -> tuple[SharedState, str]:
        found = self._place.read()
        if found is None:
            raise CheckpointError(f"the state of {self._checkpoint} is gone: it must not be deleted while exports run")
        state = _parsed(found[0], self._checkpoint)
        if state.id != self.id:
            raise CheckpointError(f"another export has begun with the checkpoint {self._checkpoint}")
        return state, found[1]

    def _replace(self, state: SharedState, version: str | None) -> bool:
        state.write = secrets.token_hex(8)
        return self._place.replace(json.dumps(state.to_json(), indent=1, sort_keys=True).encode(), version)

    def _update(self, change: Callable[[SharedState], T]) -> T:
        """Change the state, again if another process was faster. Return what `change` returns."""
        while True:
            state, version = self._read()
            before = state.to_json()
            result = change(state)
            if state.to_json() == before or self._replace(state, version):
                self.shared = state
                return result
            time.sleep(secrets.randbelow(BACKOFF_MS) / 1000)

    @property
    def state(self) -> State:
        shared = self.shared
        return State(shared.batch, shared.position, shared.rows, shared.bytes)

    @property
    def is_first(self) -> bool:
        return self.shared.rows == 0

    def refresh(self) -> SharedState:
        """Read the state."""
        self.shared = self._read()[0]
        return self.shared

    def mark_checked(self) -> None:
        """Record that the target has no files of another checkpoint."""

        def change(state: SharedState) -> None:
            check_identity(self._checkpoint, state.what, self._what)
            state.is_checked = True

        self._update(change)

    def exported_offset(self, key: str, queue_id: str) -> int:
        return self.shared.exported_offset(key, queue_id)

    def schema(self) -> str | None:
        return self.shared.schema

    def fix_schema(self, text: str) -> str:
        def change(state: SharedState) -> str:
            state.schema = text if state.schema is None else state.schema
            return state.schema

        return self._update(change)

    # -- claims

    def begin(
        self, seen: SharedState, position: dict[str, dict[str, Any]], spans: dict[str, list[Any]], label: str
    ) -> Progress:
        """Claim a new batch. Raises StateChanged.

        Args:
            seen: The state that the batch was chosen from.
            spans: See `Claim.spans`.
            label: Part of the names of its files.
        """
        token = secrets.token_hex(8)
        claim = Claim(0, spans, label, token, self._owner, self.life.beat_s, token)
        self._update(lambda state: claims.begin(state, seen, position, claim))
        return self._own(claim)

    def left_claim(self) -> Claim | None:
        """Return the oldest claim whose owner has failed or shows no life."""
        return next((claim for claim in self.shared.claims if self.life.watch.is_gone(claim)), None)

    def take_over(self, seen: Claim) -> Progress:
        """Take over a claim. Raises StateChanged if another process was faster."""
        token = secrets.token_hex(8)
        beat_s = self.life.beat_s
        claim = self._update(lambda state: claims.take_over(state, seen, token, self._owner, beat_s))
        progress = self._own(claim)
        self._sweep()
        return progress

    def _own(self, claim: Claim) -> Progress:
        self._claim = claim
        self.life.work_for(claim.token)
        position = {key: {"id": queue_id, "offset": stop} for key, (queue_id, _, stop) in claim.spans.items()}
        counts = {"rows": claim.rows, "bytes": claim.bytes, "rejected": claim.rejected}
        self._progress = Progress(claim.batch, position, moves=claim.moves, **counts)
        return self._progress

    @property
    def _present(self) -> tuple[Claim, Progress]:
        assert self._claim is not None and self._progress is not None
        return self._claim, self._progress

    @property
    def attempt_name(self) -> str:
        """Return the name of the present attempt; no other one ever has it."""
        return self._present[0].attempt

    def attempt(self) -> Path:
        path = self.directory / STAGING / self.attempt_name
        path.parent.mkdir(exist_ok=True)
        return path

    def save(self) -> None:
        """Fix the present claim, with the names and counts of its files."""
        claim, progress = self._present
        moves = progress.moves
        assert moves is not None
        counts = (progress.rows, progress.bytes, progress.rejected)
        self._update(lambda state: claims.fix(state, claim.batch, claim.token, moves, counts))

    def open_again(self) -> None:
        """Drop the fixed files of the present claim, which are gone."""
        claim, progress = self._present
        self._update(lambda state: claims.open_again(state, claim.batch, claim.token))
        claim.attempt = claim.token
        progress.moves, progress.rows, progress.bytes, progress.rejected = None, 0, 0, 0

    def commit(self) -> None:
        """Count the present batch as done. Raises StaleOwner if another process has done so."""
        claim, _ = self._present

        def change(state: SharedState) -> None:
            present = state.claim_of(claim.batch)
            if present is None:
                raise claims.StaleOwner(f"batch {claim.batch}: another process has finished it")
            if present.moves is None:
                raise claims.StaleOwner(f"batch {claim.batch}: {present.owner} writes its files again")
            claims.finish(state, claim.batch)

        self._update(change)
        self.drop()

    def owns_claim(self) -> bool:
        """Return whether no other process has taken over or finished the present batch."""
        if self._claim is None:
            return True
        try:
            claims.owned(self.refresh(), self._claim.batch, self._claim.token)
        except claims.StaleOwner:
            return False
        return True

    def release(self) -> None:
        """Give up the present claim, so that another process may take it over at once."""
        if self._claim is not None:
            batch, token = self._claim.batch, self._claim.token
            self._update(lambda state: claims.release(state, batch, token))
            self.drop()

    def drop(self) -> None:
        """End the work at the present batch: remove files and signs of life that no claim has."""
        claim = self._claim
        self._claim = self._progress = None
        self.life.work_for("")
        if claim is not None and is_object_store(self._checkpoint):
            shutil.rmtree(self.directory / STAGING / claim.attempt, ignore_errors=True)
        self._sweep()

    def _sweep(self) -> None:
        """Remove what no claim has any more. The list is older than the state, so it has nothing of newer claims."""
        left = self._place.left()
        needed = {name for claim in self.refresh().claims for name in (claim.attempt, claim.token)}
        for name in sorted(left - needed):
            self._place.remove(name)

    def close(self) -> None:
        """End the signs of life. A claim stays: it is left to another process."""
        self.life.close()
        self._remove_local_directory()

    def _remove_local_directory(self) -> None:
        if self._local_lock >= 0:
            shutil.rmtree(self.directory, ignore_errors=True)
            os.close(self._local_lock)
            self._local_lock = -1


def _local_directory() -> tuple[Path, int]:
    """Return a new directory for files that are uploaded, and the descriptor of its lock.

    Directories of killed processes are removed.
    """
    root = Path(tempfile.gettempdir())
    for old in root.glob(f"{_LOCAL}*"):
        with suppress(OSError):  # of another user
            lock = os.open(old, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(old, ignore_errors=True)
            finally:
                os.close(lock)
    while True:
        made = Path(tempfile.mkdtemp(prefix=_LOCAL))
        lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if made.exists():  # another process may have removed it before it was locked
            return made, lock
        os.close(lock)


ExportLedger: TypeAlias = ExportCheckpoint | SharedCheckpoint
"""A checkpoint as the job and the targets use it. Methods raise CheckpointError and OSError."""
