"""First useful paint: from an address to figures on the overview, and to rows in the list of queues.

An open, idle tab gets an address; its user is logged in and its cache is empty. The time ends with the second frame
after the useful element is in the document, so it has been painted. The tab's own clock measures it, and the driver
(Debian's Chromium by Playwright, the extra `page`) does nothing in the tab until then.

The same is measured for a minimal page: HTML, one module script and one request for one figure, from a small server on
this host. This is the share of machine and browser; the difference is the share of the page.
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
"""Debian's packages. The first has no windows, which saves 150 ms a page."""
PAINTS: Final = 10
REST_MS: Final = 300
"""Time without measurement after a tab is opened, so that its start does not count."""
LEAST: Final = "the least page"
USEFUL: Final = {LEAST: "b", "#/": ".tile b", "#/queues": "main tbody tr"}
"""The selector of the useful element, by the page's address."""
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
    """The milliseconds of all paints of one address. browser: which of `BROWSERS` painted."""

    browser: str
    all_ms: list[float]

    @property
    def median_ms(self) -> float:
        return statistics.median(self.all_ms)

    @property
    def best_ms(self) -> float:
        return min(self.all_ms)


def paints(port: int) -> dict[str, Paints]:
    """Paint all addresses in turn, so that each gets a share of other load. Returns nothing without a browser.

    port: of the HTTP API. Takes about ten seconds.
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
    """Return the milliseconds of one paint in a new context."""
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
    """Serves the files of the minimal page."""

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
    """Yield the port of a server of the minimal page."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Least) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
