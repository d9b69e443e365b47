"""The files of the web page: content, headers, caching, and the placeholder if the page is not built."""

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


def make_request(name: str = "", **headers: str) -> ApiRequest:
    header_dict = {key.replace("_", "-"): value for key, value in headers.items()}
    unused: Any = None
    return ApiRequest(unused, unused, unused, Principal(User(""), False), "GET", {"file": name}, {}, header_dict, None)


@pytest.fixture
def built_page(tmp_path: Path) -> Path:
    (tmp_path / "main-AB12.js").write_bytes(SCRIPT)
    (tmp_path / "main-AB12.js.gz").write_bytes(gzip.compress(SCRIPT))
    (tmp_path / "main-AB12.js.br").write_bytes(b"as if by brotli")
    (tmp_path / "notes.txt").write_bytes(b"none of the page")
    (tmp_path / "index.html").write_bytes(b"<!doctype html><title>amqpd</title>")
    return tmp_path


async def test_script_is_immutable_and_compressed_by_accept_encoding(built_page):
    files = PageFiles(built_page)
    plain = await get_asset(files, make_request("main-AB12.js"))
    assert (plain.status, plain.body, plain.content_type) == (200, SCRIPT, "text/javascript; charset=utf-8")
    assert plain.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    assert plain.headers["Vary"] == "Accept-Encoding"
    assert "Content-Encoding" not in plain.headers
    zipped = await get_asset(files, make_request("main-AB12.js", Accept_Encoding="deflate, gzip;q=0.5"))
    assert zipped.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(zipped.body) == SCRIPT
    brotli = await get_asset(files, make_request("main-AB12.js", Accept_Encoding="gzip, deflate, br"))
    assert (brotli.headers["Content-Encoding"], brotli.body) == ("br", b"as if by brotli")
    assert len({each.headers["ETag"] for each in (plain, zipped, brotli)}) == 3


async def test_page_is_revalidated_by_etag(built_page):
    files = PageFiles(built_page)
    page = await get_page(files, make_request())
    assert (page.status, page.headers["Cache-Control"]) == (200, "no-cache")
    revalidated = await get_page(files, make_request(If_None_Match=f'"other", {page.headers["ETag"]}'))
    assert (revalidated.status, revalidated.body, revalidated.headers["ETag"]) == (304, None, page.headers["ETag"])
    assert (await get_page(files, make_request(If_None_Match='"other"'))).status == 200


async def test_new_build_is_served_without_restart(built_page):
    files = PageFiles(built_page)
    before = await get_page(files, make_request())
    (built_page / "main-AB12.js").unlink()
    (built_page / "main-CD34.js").write_bytes(b"another")
    (built_page / "index.new").write_bytes(b"another page")
    (built_page / "index.new").replace(built_page / "index.html")
    after = await get_page(files, make_request(If_None_Match=before.headers["ETag"]))
    assert (after.status, after.body) == (200, b"another page")
    assert (await get_asset(files, make_request("main-CD34.js"))).body == b"another"
    with pytest.raises(ResourceNotFound):
        await get_asset(files, make_request("main-AB12.js"))


async def test_page_with_modification_time_zero_is_served(built_page):
    """Reproducible images and packages set all file times to 1970."""
    os.utime(built_page / "index.html", ns=(0, 0))
    assert (await get_page(PageFiles(built_page), make_request())).body == b"<!doctype html><title>amqpd</title>"


@pytest.mark.parametrize(
    "name", ["../index.html", "index.html", "notes.txt", "main-AB12.js.gz", "/etc/passwd", "", "."]
)
async def test_other_files_are_not_served(built_page, name):
    with pytest.raises(ResourceNotFound):
        await get_asset(PageFiles(built_page), make_request(name))


@pytest.mark.parametrize("from_sources", [True, False])
async def test_missing_build_shows_reason_and_refreshes(tmp_path, monkeypatch, from_sources):
    monkeypatch.setattr(ui, "SETUP", tmp_path / ("setup.py" if from_sources else "none"))
    (tmp_path / "setup.py").touch()
    page = await get_page(PageFiles(tmp_path / "dist"), make_request())
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
def test_parse_accept_encoding(header, taken):
    assert parse_accept_encoding(header) - {""} == taken


class TestOverHttp:
    @pytest.fixture
    def anonymous(self, api):
        return type(api)(api.broker, "")

    def test_page_needs_no_login_and_has_strict_content_policy(self, anonymous):
        answer = anonymous("GET", "/")
        assert answer.status == 200
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert "http" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"

    def test_plain_page_has_no_script(self, anonymous):
        answer = anonymous("GET", "/plain")
        assert answer.status == 200
        text = answer.body.decode()
        assert "script" not in text
        assert '<a href="/api/queues">' in text

    def test_missing_asset_is_404(self, anonymous):
        assert anonymous("GET", "/assets/none.js", raw=True).status == 404
        assert anonymous("GET", "/assets/..%2F..%2Fhttp.py", raw=True).status == 404
