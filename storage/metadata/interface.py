"""Who keeps the metadata: a database of this node (`metadata.Metadata`), or Kafka for all nodes of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from amqpd.storage.metadata.rows import Change, Row
    from amqpd.storage.metadata.store import Done, MetadataState


class MetadataStore(Protocol):
    """What a broker asks of it; `Metadata` says it all."""

    def open(self, seed: Callable[[], Sequence[Row]] | None = None) -> MetadataState:
        """All rows, once. Raises: MetadataError."""

    def warm(self) -> None:
        """What the first change needs is made ready now."""

    def submit(self, changes: Sequence[Change], done: Done) -> None:
        """All or none; done(None) on the loop once they are kept, else done(WriteFailed). Raises: MetadataClosed."""

    def checkpoint(self, done: Done) -> None:
        """done(None) once nothing takes back what was submitted before. Raises: MetadataClosed."""

    def copy(self, path: Path, done: Done) -> None:
        """done(None) once `path` is a copy of all submitted before. Raises: MetadataClosed."""

    def close(self, timeout_s: float = 5.0) -> None:
        """Nothing is submitted any more."""
