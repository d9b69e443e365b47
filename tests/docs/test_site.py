"""The documentation site: builds without warnings, has every page in its navigation, and loads nothing from other
hosts.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from interop.manual.site import ROOT, build, papers, rewritten, uri_of

pytest.importorskip("mkdocs")
pytest.importorskip("material")

SOURCE = re.compile(r"""<(?:script|img|iframe|source|audio|video)\b[^>]*?\bsrc=["']?(?P<src>[^"'\s>]+)""")
LINK = re.compile(r"""<link\b[^>]*>""")
EXTERNAL_STYLE = re.compile(r"""(?:@import\s+["']?|url\(["']?)(https?:|//)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("docs") / "site"
    assert build(target, "--quiet") == 0
    return target


def test_site_has_every_page(site: Path) -> None:
    built = {str(path.relative_to(site).with_suffix(".md")) for path in site.rglob("*.html")}
    source_pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    source_pages = {name for name in source_pages if not name.startswith("site/")}
    source_pages |= {uri_of(name) for name in papers()}
    assert {re.sub(r"README\.md$", "index.md", name) for name in source_pages} - built == set()


def test_every_page_is_in_the_navigation() -> None:
    navigation = set(re.findall(r"([\w./-]+\.md)\s*$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE))
    source_pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert {name for name in source_pages if not name.startswith("site/")} - navigation == set()


def test_nothing_is_loaded_from_other_hosts(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text("utf-8")
        addresses = [found["src"] for found in SOURCE.finditer(text)]
        addresses += [link for link in LINK.findall(text) if not re.search(r'rel="?(canonical|prev|next)', link)]
        assert [each for each in addresses if re.search(r"(https?:)?//", each)] == [], path.name
        assert "fonts.g" not in text, path.name
    for path in site.rglob("*.css"):
        assert not EXTERNAL_STYLE.search(path.read_text("utf-8")), path.name


def test_block_marks_are_not_on_the_site(site: Path) -> None:
    assert [path.name for path in site.rglob("*.html") if "<!-- not run" in path.read_text("utf-8")] == []


def test_links_out_of_docs_are_rewritten() -> None:
    assert rewritten("[a](../storage/README.md#x)", "streams.md") == "[a](code/storage/README.md#x)"
    assert rewritten("[a](../storage/README.md)", "reference/x.md") == "[a](../storage/README.md)"
    assert rewritten("[a](../../docs/tls.md)", "code/amqpd/config/README.md") == "[a](../../../tls.md)"
    assert rewritten("[a](../../docs/tls.md)", "code/storage/log/README.md") == "[a](../../../tls.md)"
    assert rewritten("[a](../README.md)", "streams.md") == "[a](index.md)"
    assert rewritten("[a](docs/tls.md)", "index.md") == "[a](tls.md)"
    assert rewritten("[a](CONTRIBUTING.md)", "index.md") == "[a](code/CONTRIBUTING.md)"
    assert rewritten("[a](../amqpd/errors.py)", "streams.md") == "a"
    assert rewritten("[a](deploy/compose.yaml)", "deploy.md") == "[a](deploy/compose.yaml)"
    assert rewritten("```text\n[a](../amqpd/errors.py)\n<!-- x -->\n```\n<!-- y -->\nz", "a.md") == (
        "```text\n[a](../amqpd/errors.py)\n<!-- x -->\n```\nz"
    )
