"""Prometheus' text format: families, and the sheet on which their samples are put down.

    # TYPE rabbitmq_queue_messages_ready gauge
    # HELP rabbitmq_queue_messages_ready Messages that wait for a consumer
    rabbitmq_queue_messages_ready{vhost="/",queue="orders"} 12

All samples of a family stand together, whatever the order in which objects are looked at: so a `Sheet` keeps the lines
by family, in the order in which families come first, and joins them at the end, in pieces.

Source: Prometheus exposition format 0.0.4. RabbitMQ 3.10 writes quotes in names of queues as they are, which no parser
takes; here they are escaped.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from amqpd.management.time_slice import Slices

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
CHUNK_BYTES: Final = 64 * 1024
OURS: Final = "amqpd_"
THEIRS: Final = "rabbitmq_"
CLUSTER: Final = "rabbitmq_cluster_"
DETAILED: Final = "detailed_"


class Family(NamedTuple):
    """One metric. name: with its prefix, as `/metrics` has it. kind: gauge, counter, histogram. group: what
    `/metrics/detailed?family=` calls it; empty where that does not have it.
    """

    name: str
    kind: str
    help: str
    group: str = ""

    def detailed(self) -> str:
        """Its name on `/metrics/detailed`. rabbit: what holds for a whole cluster keeps its own."""
        if self.name.startswith(CLUSTER):
            return self.name
        prefix = OURS if self.name.startswith(OURS) else THEIRS
        return prefix + DETAILED + self.name.removeprefix(prefix)


def escaped(text: str) -> str:
    """As a label's value has it."""
    if "\\" in text or '"' in text or "\n" in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return text


def labels(**values: str) -> str:
    """In braces, in the order given; empty for none."""
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in values.items()) + "}" if values else ""


def shown(value: float) -> str:
    """As a sample has it."""
    if isinstance(value, int):
        return str(value)
    return "NaN" if math.isnan(value) else f"{value:.15g}"


class Sheet:
    """One answer on its way. detailed: names are those of `/metrics/detailed`."""

    def __init__(self, *, detailed: bool = False) -> None:
        self._detailed = detailed
        self._lines: dict[str, list[str]] = {}

    def begin(self, family: Family) -> list[str]:
        """The family's lines, which samples are appended to; its heading stands in them already."""
        name = family.detailed() if self._detailed else family.name
        lines = self._lines.get(name)
        if lines is None:
            help_text = family.help.replace("\\", "\\\\").replace("\n", "\\n")
            lines = self._lines[name] = [f"# TYPE {name} {family.kind}\n# HELP {name} {help_text}\n"]
        return lines

    def add(self, family: Family, value: float, given: str = "") -> None:
        """One sample. given: its labels, as `labels` makes them."""
        name = family.detailed() if self._detailed else family.name
        self.begin(family).append(f"{name}{given} {shown(value)}\n")

    def add_histogram(self, family: Family, bounds: tuple[float, ...], counts: list[int], total: float) -> None:
        """counts: by bucket, not added up, and of what is above all bounds. total: of all values."""
        name = family.detailed() if self._detailed else family.name
        lines = self.begin(family)
        below = 0
        for bound, count in zip((*bounds, math.inf), counts, strict=True):
            below += count
            shown_bound = "+Inf" if bound == math.inf else shown(bound)
            lines.append(f'{name}_bucket{{le="{shown_bound}"}} {below}\n')
        lines += [f"{name}_sum {shown(total)}\n", f"{name}_count {below}\n"]

    async def chunks(self, slices: Slices) -> list[bytes]:
        """The answer's body. The sheet is empty afterwards: 10,000 queues' lines go little by little."""
        found: list[bytes] = []
        piece: list[str] = []
        size = 0
        while self._lines:
            lines = self._lines.pop(next(iter(self._lines)))
            lines.reverse()
            while lines:
                line = lines.pop()
                piece.append(line)
                size += len(line)
                if size >= CHUNK_BYTES:
                    found.append("".join(piece).encode())
                    piece, size = [], 0
                    if slices.due:
                        await slices.rest()
        found.append("".join(piece).encode())
        return found
