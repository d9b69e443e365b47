"""What an import of definitions has passed over, and what it could not keep: by path, for whoever asked for it.

A key that is not known is passed over, as RabbitMQ does, so that documents of its later versions come in. An item that
cannot be is a fault, and nothing is made: unless what cannot be is to be left out, and then it is told here.
"""

from __future__ import annotations

from typing import Final, NamedTuple

SHOWN_MAX: Final = 20
"""How many of each a sentence names; a report has REPORTED_MAX, and counts the others."""
REPORTED_MAX: Final = 1000


class DefinitionsError(Exception):
    """A start ends with this: a file of definitions cannot be read, or not be made. The text names it."""


class Fault(NamedTuple):
    """path: `queues[3]` or `policies[0].definition.no-such`."""

    path: str
    reason: str

    def __str__(self) -> str:
        # What RabbitMQ says of policies has lines.
        return f"{self.path}: {' '.join(self.reason.split())}"


class Report:
    """Of one import."""

    def __init__(self) -> None:
        self.unknown: list[str] = []
        self.unknown_count = 0
        self.faults: list[Fault] = []
        self.fault_count = 0

    def pass_over(self, path: str) -> None:
        """A key that says nothing here."""
        self.unknown_count += 1
        if len(self.unknown) < REPORTED_MAX:
            self.unknown.append(path)

    def fault(self, path: str, reason: str) -> None:
        """What cannot be kept."""
        self.fault_count += 1
        if len(self.faults) < REPORTED_MAX:
            self.faults.append(Fault(path, reason))

    def fields(self) -> dict[str, object]:
        """As the API answers it."""
        return {
            "unknown": self.unknown,
            "unknown_count": self.unknown_count,
            "skipped": [fault._asdict() for fault in self.faults],
            "skipped_count": self.fault_count,
        }

    def faults_text(self) -> str:
        """One sentence for each, the first ones."""
        return _listed([str(fault) for fault in self.faults[:SHOWN_MAX]], self.fault_count, "; ")

    def unknown_text(self) -> str:
        """The first ones."""
        return _listed(self.unknown[:SHOWN_MAX], self.unknown_count, ", ")


def _listed(shown: list[str], count: int, between: str) -> str:
    text = between.join(shown)
    return text + (f" and {count - len(shown)} more" if count > len(shown) else "")
