"""First useful paint: from an address to figures on the overview, and to lines in the list of queues.

A tab that is open and at rest is given an address; its user is logged in, its cache is empty. It counts until the
second frame after what makes the page useful is in the document, so that this has been painted. The tab's own clock
says when, and nothing of the driver's (Debian's Chromium by Playwright, the extra `page`) runs in it until then.

The same is measured of the least page that there is: HTML, one module script, one question of one figure, from a server
of a few lines on this host. What that takes is the machine's share and the browser's; what is left is the page's.
"""

from __future__ import annotations

import json
import shutil
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, NamedTuple

from .rounds import say

if TYPE_CHECKING:
    from playwright.sync_api import Browser

BROWSERS: Final = ("chromium-headless-shell", "chromium")
"""Debian's packages: the first has no windows to see to, which cost the second 150 ms a page that nobody sees."""
PAINTS: Final = 10
REST_MS: Final = 300
"""What a tab that was opened this moment is left alone for: its start is no part of the page's."""
LEAST: Final = "the least page"
USEFUL: Final = {LEAST: "b", "#/": ".tile b", "#/queues": "main tbody tr"}
"""What makes a page useful, by its address."""
_WATCH: Final = """selector => {
    const seen = () => {
        if (!document.querySelector(selector)) return false;
        requestAnimationFrame(() => requestAnimationFrame(() => console.debug("useful", performance.now())));
        return true;
    };
    const watch = new MutationObserver(() => seen() && watch.disconnect());
    watch.observe(document, {childList: true, subtree: true});
}"""
_SCRIPT: Final = """const { figure } = await (await fetch("/figure")).json();
const shown = document.createElement("b");
shown.textContent = figure;
document.querySelector("main").append(shown);
"""
_FILES: Final = {
    "/": ("text/html", '<!doctype html><title>-</title><script type="module" src="/least.js"></script><main></main>'),
    "/least.js": ("text/javascript", _SCRIPT),
    "/figure": ("application/json", '{"figure": 5}'),
}


class Paints(NamedTuple):
    """Milliseconds of all paints of one address. browser: which of `BROWSERS` painted."""

    browser: str
    all_ms: list[float]

    @property
    def median_ms(self) -> float:
        return statistics.median(self.all_ms)

    @property
    def best_ms(self) -> float:
        return min(self.all_ms)


def paints(port: int) -> dict[str, Paints]:
    """By address, in turn, so that each has its share of what else the machine does; none where there is no browser.

    port: of the admin API. Takes some ten seconds.
    """
    name = next(filter(shutil.which, BROWSERS), None)
    if name is None or find_spec("playwright") is None:
        say("no Chromium, or no playwright: nothing is painted")
        return {}
    from playwright.sync_api import sync_playwright

    found: dict[str, list[float]] = {path: [] for path in USEFUL}
    with least() as least_port, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which(name), args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        for _ in range(PAINTS):
            for path in USEFUL:
                found[path].append(_paint(browser, least_port if path == LEAST else port, path))
        browser.close()
    return {path: Paints(name, all_ms) for path, all_ms in found.items()}


def _paint(browser: Browser, port: int, path: str) -> float:
    """Milliseconds of one paint, in a context of its own."""
    context = browser.new_context()
    url = f"http://127.0.0.1:{port}/"
    if path != LEAST:
        login = {"username": "guest", "password": "guest"}
        context.request.post(f"{url}api/amqpd/session", form=login, headers={"Amqpd-Page": "1"})
        url += path
    page = context.new_page()
    page.add_init_script(f"({_WATCH})({json.dumps(USEFUL[path])})")
    page.wait_for_timeout(REST_MS)
    with page.expect_console_message(lambda said: said.text.startswith("useful ")) as told:
        page.goto(url, wait_until="commit")
    ms = float(told.value.text.split()[1])
    context.close()
    return ms


class _Least(BaseHTTPRequestHandler):
    """Answers with the least page's files."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        content_type, content = _FILES.get(self.path, ("text/plain", ""))
        self.send_response(200 if content else 404)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def least() -> Iterator[int]:
    """The port of a server of the least page."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Least) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
