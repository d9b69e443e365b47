"""Claims of a shared export: which process exports which batch, and what happens when a process is gone.

The functions change a `SharedState` in memory. They do no IO and know no clock. A shared checkpoint
(shared_checkpoint.py) reads the state, calls one of them, and replaces the state if no other process has replaced it
meanwhile. If that is unknown, it calls the function again with the newest state. So each function may be called again
after it has had its effect.

A claim has two steps:

    open      an owner writes the files of the batch where no reader sees them. Its token says which owner
    fixed     `moves` has the final names. They never change, so any process may complete the batch, and twice

A process takes over the claim of an owner that shows no life: the claim gets another token. The earlier owner may only
be slow. It cannot fix the claim any more, and what it has written is dropped. If it has fixed the claim before, both
complete the same files.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

VERSION: Final = 1
WINDOW: Final = 64
"""Smallest distance of the numbers of two batches that one slot of a table has. Batches of a slot are sequential."""
LOOKS: Final = 6
"""Looks at a claim without a sign of life, before it is taken over."""


class StaleOwner(Exception):
    """Another process has taken over or finished the batch; the work of this one at it is dropped."""


class StateChanged(Exception):
    """Another process has begun a batch since this one looked at the state."""


@dataclass
class Claim:
    """A batch that is not finished.

    Attributes:
        spans: {"vhost/queue": [id of the queue, first offset, end]}, without empty ones.
        label: Part of the names of its files.
        token: The owner's, new for each owner; "" if the last one has failed.
        owner: Host and process, for people.
        beat_s: Time between two signs of life of the owner.
        attempt: Name of the directory of its files, until they have their final names.
        moves: [staged, final] names, once they are fixed.
    """

    batch: int
    spans: dict[str, list[Any]]
    label: str
    token: str
    owner: str
    beat_s: float
    attempt: str
    moves: list[list[str]] | None = None
    rows: int = 0
    bytes: int = 0
    rejected: int = 0


@dataclass
class SharedState:
    """The state of a shared export.

    Attributes:
        id: Part of the names of its files.
        what: Its options, see `ExportOptions.identity`.
        is_checked: The target had no files of another checkpoint. No batch begins before.
        batch: Number of the last batch that a process has begun.
        position: {"vhost/queue": {"id": incarnation, "offset": next}}: the offsets below are finished or claimed.
        rows: Rows of finished batches.
        bytes: Bytes of their bodies.
        schema: Schema of the column `payload`, once it is fixed.
        write: New in each version, so that no two versions are equal.
    """

    id: str
    what: dict[str, Any]
    is_checked: bool = False
    batch: int = 0
    position: dict[str, dict[str, Any]] = field(default_factory=dict)
    rows: int = 0
    bytes: int = 0
    schema: str | None = None
    claims: list[Claim] = field(default_factory=list)
    version: int = VERSION
    write: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(found: dict[str, Any]) -> SharedState:
        """Raises: KeyError, TypeError, ValueError if it is not the state of this version."""
        if found["version"] != VERSION:
            raise ValueError("another version")
        given = {each.name: found[each.name] for each in fields(SharedState)}
        return SharedState(**{**given, "claims": [Claim(**claim) for claim in found["claims"]]})

    def claim_of(self, batch: int) -> Claim | None:
        return next((claim for claim in self.claims if claim.batch == batch), None)

    @property
    def has_room(self) -> bool:
        """Return whether another batch may begin: the oldest claim must not share its slot."""
        return not self.claims or self.batch + 1 - min(claim.batch for claim in self.claims) < WINDOW

    def exported_offset(self, key: str, queue_id: str) -> int:
        """Return the offset below which all offsets of a queue are exported."""
        position = self.position.get(key)
        if position is None or position["id"] != queue_id:
            return 0
        claimed = [claim.spans[key] for claim in self.claims if key in claim.spans]
        return min([int(position["offset"]), *(int(first) for id_, first, _ in claimed if id_ == queue_id)])


def begin(state: SharedState, seen: SharedState, position: dict[str, dict[str, Any]], claim: Claim) -> None:
    """Claim a new batch.

    Args:
        seen: The state that `position` and `claim.spans` were chosen from.
        claim: Its `batch` is set.

    Raises: StateChanged.
    """
    known = next((each for each in state.claims if each.attempt == claim.attempt), None)
    if known is not None:
        claim.batch = known.batch
        return
    if (state.batch, state.position) != (seen.batch, seen.position) or not state.has_room or not state.is_checked:
        raise StateChanged
    claim.batch = state.batch = seen.batch + 1
    state.position = {**state.position, **position}
    state.claims.append(claim)


def take_over(state: SharedState, seen: Claim, token: str, owner: str, beat_s: float) -> Claim:
    """Replace the owner of a claim. Return the claim; if it is not fixed, its files must be written again.

    Args:
        seen: The claim whose owner showed no life.

    Raises: StateChanged if it is not the same claim any more.
    """
    claim = state.claim_of(seen.batch)
    if claim is None or claim.token not in (seen.token, token):
        raise StateChanged
    claim.token, claim.owner, claim.beat_s = token, owner, beat_s
    if claim.moves is None:
        claim.attempt = token
    return claim


def owned(state: SharedState, batch: int, token: str) -> Claim:
    """Return the claim of an owner. Raises: StaleOwner."""
    claim = state.claim_of(batch)
    if claim is None:
        raise StaleOwner(f"batch {batch}: another process has finished it")
    if claim.token != token:
        raise StaleOwner(f"batch {batch}: {claim.owner or 'another process'} has taken it over")
    return claim


def fix(state: SharedState, batch: int, token: str, moves: list[list[str]], counts: tuple[int, int, int]) -> None:
    """Fix the files of a claim.

    Args:
        counts: Rows, bytes of bodies, rejected messages.

    Raises: StaleOwner.
    """
    claim = owned(state, batch, token)
    claim.moves = moves
    claim.rows, claim.bytes, claim.rejected = counts


def open_again(state: SharedState, batch: int, token: str) -> None:
    """Drop the fixed files of a claim, which another program has deleted. Raises: StaleOwner."""
    claim = owned(state, batch, token)
    claim.moves, claim.attempt = None, token


def release(state: SharedState, batch: int, token: str) -> None:
    """Give up a claim that failed, so that another process may take it over at once. A lost claim stays as it is."""
    claim = state.claim_of(batch)
    if claim is not None and claim.token == token:
        claim.token = ""


def finish(state: SharedState, batch: int) -> None:
    """Count a fixed claim as done: its files have their final names. It may be finished already."""
    claim = state.claim_of(batch)
    if claim is None:
        return
    assert claim.moves is not None
    state.rows += claim.rows
    state.bytes += claim.bytes
    state.claims.remove(claim)


class LifeWatch:
    """Looks at the signs of life of owners.

    An owner counts, and writes its count every `beat_s` seconds. The watch counts its own looks without a change, and
    compares no clocks of two machines. A process that was paused makes only one look afterwards, so it does not take
    all others for dead.

    Args:
        look_s: Time between two looks.
    """

    def __init__(self, look_s: float) -> None:
        self._look_s = look_s
        self._seen: dict[str, tuple[str | None, int]] = {}

    def look(self, beats: dict[str, str | None]) -> None:
        """Account for a look.

        Args:
            beats: The count of each token; None if there is none.
        """
        seen: dict[str, tuple[str | None, int]] = {}
        for token, beat in beats.items():
            known = self._seen.get(token)
            seen[token] = (beat, known[1] + 1 if known is not None and known[0] == beat else 0)
        self._seen = seen  # another thread calls `is_gone`

    def is_gone(self, claim: Claim) -> bool:
        """Return whether the claim has no owner, or the owner has shown no life for LOOKS of its intervals."""
        if not claim.token:
            return True
        looks = self._seen.get(claim.token, (None, 0))[1]
        return looks >= LOOKS * max(1.0, claim.beat_s / self._look_s)
