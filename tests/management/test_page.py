"""The page's files: what a browser gets, with which headers, and what stands there where nothing is built."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from amqpd.auth.internal_backend import User
from amqpd.management import ui
from amqpd.management.request import ApiRequest, Principal, ResourceNotFound
from amqpd.management.ui import PageFiles, get_asset, get_page, parse_accept_encoding

SCRIPT = b"console.log('a page')" * 50


def ask(name: str = "", **headers: str) -> ApiRequest:
    told = {key.replace("_", "-"): value for key, value in headers.items()}
    nothing: Any = None
    return ApiRequest(nothing, nothing, nothing, Principal(User(""), False), "GET", {"file": name}, {}, told, None)


@pytest.fixture
def built(tmp_path: Path) -> Path:
    (tmp_path / "main-AB12.js").write_bytes(SCRIPT)
    (tmp_path / "main-AB12.js.gz").write_bytes(gzip.compress(SCRIPT))
    (tmp_path / "main-AB12.js.br").write_bytes(b"as if by brotli")
    (tmp_path / "notes.txt").write_bytes(b"none of the page")
    (tmp_path / "index.html").write_bytes(b"<!doctype html><title>amqpd</title>")
    return tmp_path


async def test_a_script_is_kept_for_ever_and_sent_as_small_as_the_browser_takes_it(built):
    files = PageFiles(built)
    plain = await get_asset(files, ask("main-AB12.js"))
    assert (plain.status, plain.body, plain.content_type) == (200, SCRIPT, "text/javascript; charset=utf-8")
    assert plain.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    assert plain.headers["Vary"] == "Accept-Encoding"
    assert "Content-Encoding" not in plain.headers
    zipped = await get_asset(files, ask("main-AB12.js", Accept_Encoding="deflate, gzip;q=0.5"))
    assert zipped.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(zipped.body) == SCRIPT
    brotli = await get_asset(files, ask("main-AB12.js", Accept_Encoding="gzip, deflate, br"))
    assert (brotli.headers["Content-Encoding"], brotli.body) == ("br", b"as if by brotli")
    assert len({each.headers["ETag"] for each in (plain, zipped, brotli)}) == 3


async def test_the_page_is_asked_for_again_and_not_sent_again(built):
    files = PageFiles(built)
    page = await get_page(files, ask())
    assert (page.status, page.headers["Cache-Control"]) == (200, "no-cache")
    again = await get_page(files, ask(If_None_Match=f'"other", {page.headers["ETag"]}'))
    assert (again.status, again.body, again.headers["ETag"]) == (304, None, page.headers["ETag"])
    assert (await get_page(files, ask(If_None_Match='"other"'))).status == 200


async def test_another_build_is_seen_while_the_broker_runs(built):
    files = PageFiles(built)
    before = await get_page(files, ask())
    (built / "main-AB12.js").unlink()
    (built / "main-CD34.js").write_bytes(b"another")
    (built / "index.new").write_bytes(b"another page")
    (built / "index.new").replace(built / "index.html")
    after = await get_page(files, ask(If_None_Match=before.headers["ETag"]))
    assert (after.status, after.body) == (200, b"another page")
    assert (await get_asset(files, ask("main-CD34.js"))).body == b"another"
    with pytest.raises(ResourceNotFound):
        await get_asset(files, ask("main-AB12.js"))


async def test_a_package_whose_files_are_of_1970_has_its_page(built):
    """So are those of images and packages that are the same whoever builds them."""
    os.utime(built / "index.html", ns=(0, 0))
    assert (await get_page(PageFiles(built), ask())).body == b"<!doctype html><title>amqpd</title>"


@pytest.mark.parametrize(
    "name", ["../index.html", "index.html", "notes.txt", "main-AB12.js.gz", "/etc/passwd", "", "."]
)
async def test_nothing_but_what_is_built_for_it_is_there(built, name):
    with pytest.raises(ResourceNotFound):
        await get_asset(PageFiles(built), ask(name))


@pytest.mark.parametrize("from_sources", [True, False])
async def test_without_a_build_it_says_why_and_asks_again(tmp_path, monkeypatch, from_sources):
    monkeypatch.setattr(ui, "SETUP", tmp_path / ("setup.py" if from_sources else "none"))
    (tmp_path / "setup.py").touch()
    page = await get_page(PageFiles(tmp_path / "dist"), ask())
    text = " ".join(page.body.decode().split())
    assert page.status == 200
    assert ("make page" in text) is from_sources
    assert ("install amqpd again" in text) is not from_sources
    assert 'http-equiv="refresh"' in text
    assert "script" not in text


@pytest.mark.parametrize(
    ("header", "taken"),
    [("", set()), ("br", {"br"}), ("gzip, BR ;q=1.0", {"gzip", "br"}), ("br;q=0, gzip; q=0.000", set()), (",;", set())],
)
def test_encodings(header, taken):
    assert parse_accept_encoding(header) - {""} == taken


class TestOverHttp:
    @pytest.fixture
    def anybody(self, api):
        return type(api)(api.broker, "")

    def test_the_page_needs_no_login_and_may_load_nothing_from_elsewhere(self, anybody):
        answer = anybody("GET", "/")
        assert answer.status == 200
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert "http" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"

    def test_what_stood_there_before_needs_no_script(self, anybody):
        answer = anybody("GET", "/plain")
        assert answer.status == 200
        text = answer.body.decode()
        assert "script" not in text
        assert '<a href="/api/queues">' in text

    def test_a_file_there_is_not(self, anybody):
        assert anybody("GET", "/assets/none.js", raw=True).status == 404
        assert anybody("GET", "/assets/..%2F..%2Fhttp.py", raw=True).status == 404
