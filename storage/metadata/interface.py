"""Interface of the metadata store: a database of this node (`store.SqlMetadataStore`), or Kafka in a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from amqpd.storage.metadata.rows import Change, Row
    from amqpd.storage.metadata.store import Done, MetadataState


class MetadataStore(Protocol):
    """The metadata operations of the broker; `SqlMetadataStore` documents them."""

    def open(self, seed: Callable[[], Sequence[Row]] | None = None) -> MetadataState:
        """Return all rows. Call once. Raises: MetadataError."""

    def warm(self) -> None:
        """Prepare for the first change now."""

    def submit(self, changes: Sequence[Change], done: Done) -> None:
        """Write all changes or none; `done` gets None or WriteFailed on the loop. Raises: MetadataClosed."""

    def checkpoint(self, done: Done) -> None:
        """Call `done(None)` when nothing can undo earlier changes. Raises: MetadataClosed."""

    def copy(self, path: Path, done: Done) -> None:
        """Copy all earlier changes to `path`, then call `done(None)`. Raises: MetadataClosed."""

    def close(self, timeout_s: float = 5.0) -> None:
        """End the store. No `submit` may follow."""
