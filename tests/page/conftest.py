"""The web page in a browser: Debian's Chromium, driven by Playwright, with brokers for this folder.

`shop` is a broker with examples of everything, shared by the tests that change nothing. `emptied` is an empty shared
broker, `broker` a broker for one test. `visit` opens a page as a user; an exception in a script or a violation of the
content-security-policy fails the test.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote

import pytest

import amqpd.management
from amqpd.testing import BrokerProcess

sys.path.insert(0, str(Path(__file__).parent))  # modules that these tests share

from page_shop import PASSWORD, Shop

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page, Request

REQUIRED = "TEST_REQUIRE_PAGE"
"""If set, these tests may not be skipped. .ci/run sets it."""
WAIT_MS = int(os.environ.get("PAGE_WAIT_MS", "30000"))
SIZES = {"desk": (1280, 900), "phone": (390, 844), "wall": (2560, 1440)}
BUILT = Path(amqpd.management.__file__).parent / "page" / "dist" / "index.html"


# Resolves when the new address is painted.
GO = """path => new Promise(done => {
    const drawn = () => requestAnimationFrame(() => requestAnimationFrame(done));
    if (location.hash === path) return drawn();
    addEventListener("hashchange", drawn, {once: true});
    location.hash = path;
})"""
# Resolves after two frames, when changes are painted.
DRAWN = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
# Resolves when requests that wait for the first paint have been sent.
PAINTED = """() => new Promise(done => {
    let frames = 4;
    const next = () => (frames -= 1) ? requestAnimationFrame(next) : setTimeout(done);
    next();
})"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder as external: they need Chromium, or a page built by Node.js."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.external)


def missing(why: str) -> NoReturn:
    if os.environ.get(REQUIRED):
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    # The headless shell has no windows and needs half the processor time.
    chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if chromium is None:
        missing("there is no Chromium here: Debian's package chromium-headless-shell has one, and chromium another")
    if find_spec("playwright") is None:
        missing("playwright is not installed: the extra `page` has it")
    if not BUILT.exists():
        missing(f"the page is not built, there is no {BUILT}: it takes Node.js 20, see amqpd/management/page/README.md")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Root, as in CI's container, has no sandbox. Without a large /dev/shm Chromium writes to /tmp.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"]
        found = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield found
        found.close()


@pytest.fixture(scope="session")
def shop(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """Depends on `browser`, so that a skip starts no broker."""
    settings = {"kafka.port": 0, "kafka.host": "127.0.0.1"}
    with BrokerProcess(tmp_path_factory.mktemp("shop"), settings=settings) as process, Shop(process) as found:
        yield found


@pytest.fixture
def broker(browser: Browser, tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "broker") as process:
        yield process


@pytest.fixture(scope="module")
def _shared(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("shared")) as process:
        yield process


@pytest.fixture
def emptied(_shared: BrokerProcess) -> BrokerProcess:
    """An empty broker (only user guest) shared by the tests of a file. Its audit log and counters are not reset."""
    vhosts: Any = _shared.api("GET", "/api/vhosts")
    users: Any = _shared.api("GET", "/api/users")
    for vhost in vhosts:
        _shared.api("DELETE", f"/api/vhosts/{quote(vhost['name'], safe='')}")
    for user in users:
        if user["name"] != "guest":
            _shared.api("DELETE", f"/api/users/{quote(user['name'], safe='')}")
    _shared.api("PUT", "/api/vhosts/%2F", {})
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    _shared.api("PUT", "/api/permissions/%2F/guest", everything)
    return _shared


class Screen:
    """A browser tab. `faults` collects unexpected errors."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context = context
        self.url = url
        self.faults: list[str] = []
        self.page: Page = context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.page.on("pageerror", lambda error: self.faults.append(f"a script failed: {error}"))
        self.page.on("console", self._said)
        self.pending: set[Request] = set()
        self.page.on("request", self._asked)
        self.page.on("requestfinished", self._answered)
        self.page.on("requestfailed", self._answered)

    def _asked(self, request: Request) -> None:
        self.pending.add(request)

    def _answered(self, request: Request) -> None:
        self.pending.discard(request)

    def _said(self, message: Any) -> None:
        # The browser also logs refusals and an unreachable broker, which the page itself reports.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self.faults.append(message.text)

    def login(self, user: str, password: str = PASSWORD) -> None:
        page = self.page
        page.get_by_label("User").fill(user)
        page.get_by_label("Password").fill(password)
        page.get_by_role("button", name="Log in").click()

    def has_logged_in(self, user: str, password: str) -> None:
        """Log in without the form, like an earlier tab."""
        form = {"username": user, "password": password}
        answer = self.context.request.post(f"{self.url}/api/amqpd/session", form=form, headers={"Amqpd-Page": "1"})
        assert answer.ok, answer.text()

    def go(self, path: str) -> None:
        """Open a path, which begins with #."""
        self.page.evaluate(GO, path)
        self.settled()

    def settled(self) -> None:
        """Wait until the page is shown and no request is pending."""
        self.page.locator("main h1, main > .failure").first.wait_for()
        self.page.evaluate(PAINTED)
        quiet, until = 0, time.monotonic() + WAIT_MS / 1000
        while quiet < 3:
            self.page.wait_for_timeout(20)
            quiet = 0 if self.pending else quiet + 1
            assert time.monotonic() < until, [request.url for request in self.pending]

    def drawn(self) -> None:
        """Wait until changes are painted."""
        self.page.evaluate(DRAWN)

    def size(self, size: str) -> None:
        width, height = SIZES[size]
        self.page.set_viewport_size({"width": width, "height": height})
        self.drawn()

    def axe(self, *rules: str) -> list[str]:
        """Return axe's serious and critical findings, of all rules or only of these."""
        if not self.page.evaluate("'axe' in window"):
            import axe_playwright_python

            script = next(Path(axe_playwright_python.__file__).parent.rglob("axe.min.js"))
            self.page.evaluate(script.read_text("utf-8"))
        options: dict[str, Any] = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}
        found = self.page.evaluate("options => axe.run(document, options)", options)
        return [
            f"{each['id']}: {each['help']}: {json.dumps([node['target'] for node in each['nodes']][:5])}"
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
        ]

    def is_as_wide_as_the_screen(self) -> bool:
        """Return True if the page needs no horizontal scrolling."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth <= innerWidth + 1"))


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Screen]]:
    """visit(broker, "#/queues", "anna", size="phone", theme="dark") opens a page; user=None: without a login."""
    screens: list[Screen] = []

    def open_it(
        broker: BrokerProcess,
        path: str = "#/",
        user: str | None = "guest",
        size: str = "desk",
        theme: str = "light",
    ) -> Screen:
        width, height = SIZES[size]
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=theme,  # type: ignore[arg-type]
            reduced_motion="reduce",
            locale="en-GB",
        )
        screen = Screen(context, broker.http_url)
        screens.append(screen)
        if user is not None:
            screen.has_logged_in(user, "guest" if user == "guest" else PASSWORD)
        screen.page.goto(f"{screen.url}/{path}")
        if user is not None:
            screen.settled()
        return screen

    yield open_it
    faults = [fault for screen in screens for fault in screen.faults]
    for screen in screens:
        screen.context.close()
    assert faults == []
