"""The benchmark (interop/bench/page.py) replays the requests that pages poll, except their lists of fields."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from interop.bench.page import ASKED


def plain(path: str, node: str, queue: str) -> str:
    """Remove the values of parameters that only limit an answer: fields and ages."""
    url = urlsplit(path.replace("{node}", node.replace("@", "%40")).replace("{queue}", queue))
    query = dict(parse_qsl(url.query))
    query |= {name: "" for name in query if name in ("columns", "fields") or name.endswith("_age")}
    return f"{url.path}?{sorted(query.items())}"


def test_benchmark_replays_the_requests_of_pages(visit, shop) -> None:
    """All pages are open at once, for as long as the slowest poll takes."""
    queue = "orders.eu"
    node = shop.api("GET", "/api/overview")["node"]
    seen: dict[str, list[str]] = {path: [] for path in ASKED}
    for path in ASKED:
        screen = visit(shop, user="anna")
        screen.go(path.replace("{queue}", queue))
        screen.page.on("request", partial(note, seen[path], screen.url))
    screen.page.wait_for_timeout(1000 * max(asked.every_s for asked in ASKED.values()) + 2500)
    for path, asked in ASKED.items():
        found = {plain(each, node, queue) for each in seen[path]}
        assert found == {plain(each, node, queue) for each in asked.paths}, path


def note(seen: list[str], url: str, request: Any) -> None:
    seen.append(request.url.removeprefix(url))
