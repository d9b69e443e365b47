"""Metrics: which of RabbitMQ's names exist."""

from __future__ import annotations

import re

from interop.compare.metrics import HEARD, LABELS_LESS, MISSING
from interop.compare.page.markdown import Section, codes, sentence, table


def section() -> Section:
    names = sorted({line.split()[2] for line in HEARD.read_text("ascii").splitlines() if not line.startswith("#")})
    missing = {pattern: [name for name in names if re.fullmatch(pattern, name)] for pattern in MISSING}
    gone = {name for found in missing.values() for name in found}
    text = (
        f"{len(names)} metrics of `/metrics` and `/metrics/per-object`. {len(names) - len(gone)} of them are there "
        f"with the same kind and labels ([monitoring](metrics.md)), of which {codes(sorted(LABELS_LESS))} may be "
        "missing: deliveries are counted by queue, publishes by channel and by queue, what is unroutable by virtual "
        "host. The metrics of the public dashboard RabbitMQ-Overview, and the alert rules of RabbitMQ's operator, are "
        "evaluated by a real Prometheus in a test.\n\n### Metrics that are missing\n\n"
    )
    rows = [(codes(found), f"{len(found)}", sentence(MISSING[pattern])) for pattern, found in missing.items()]
    text += table(("metrics", "how many", "why"), rows)
    row = ("Prometheus: [metrics](#metrics)", f"{len(names)} names", "none", f"{len(gone)} names")
    return Section("Metrics", row, text)
