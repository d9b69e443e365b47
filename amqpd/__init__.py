"""amqpd: an AMQP 0-9-1 broker whose queues are logs in Kafka's format. `amqpd.read` reads queues as Arrow batches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amqpd.storage.export.queue_reader import read as read

__version__ = "0.1.0"

if not Path(__path__[0], "routing").exists():  # in a checkout routing/, storage/ and cli/ are beside amqpd/
    __path__.append(str(Path(__path__[0]).parent))


def __getattr__(name: str) -> Any:
    """Import `read` at its first use: it needs pyarrow, and a broker does not."""
    if name != "read":
        raise AttributeError(f"module 'amqpd' has no attribute '{name}'")
    from amqpd.storage.export.queue_reader import read

    return read
