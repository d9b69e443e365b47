"""How far back a request wants samples, and how close together: `msg_rates_age`, `msg_rates_incr` and so on (s)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from amqpd.management.request import BadRequest, number
from amqpd.management.samples import NO_SPANS, Span, Spans

SAMPLES_MAX: Final = 1000
LISTED_MAX: Final = 1_000_000
"""Samples of all that a list shows: 250 MB of JSON, which stands in memory whole."""
PREFIXES: Final = ("msg_rates", "lengths", "data_rates", "node_stats")
_AGE_MAX_S: Final = 7 * 86400


def spans(query: Mapping[str, str]) -> Spans:
    """Raises: BadRequest."""
    if not any(f"{prefix}_age" in query for prefix in PREFIXES):
        return NO_SPANS
    return Spans(*(_span(query, prefix) for prefix in PREFIXES))


def check_list(query: Mapping[str, str], count: int) -> None:
    """count: how many objects an answer is to have. Raises: BadRequest."""
    samples = sum(span.age // span.increment + 1 for span in spans(query) if span is not None)
    if samples * count > LISTED_MAX:
        raise BadRequest(f"{samples} samples of each of {count} are too many: ask for a page, or for fewer samples")


def _span(query: Mapping[str, str], prefix: str) -> Span | None:
    age, increment = query.get(f"{prefix}_age"), query.get(f"{prefix}_incr")
    if age is None or increment is None:
        return None
    found = Span(number(f"{prefix}_age", age, 1, _AGE_MAX_S), number(f"{prefix}_incr", increment, 1, _AGE_MAX_S))
    number(f"{prefix}_age divided by {prefix}_incr", found.age // found.increment, 0, SAMPLES_MAX)
    return found
