"""The built files: complete, small, and without other hosts. The lock file names no host."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import cramjam
import pytest
from conftest import BUILT, missing

SCRIPT_BYTES_MAX = 120 * 1024
ROOT = Path(__file__).parents[2]
PAGE = Path("amqpd", "management", "page")
SOURCES = ROOT / PAGE


@pytest.fixture(scope="module")
def built() -> dict[str, bytes]:
    """The built files by name, including the compressed ones."""
    if not BUILT.exists():
        missing(f"the page is not built, there is no {BUILT}")
    return {path.name: path.read_bytes() for path in BUILT.parent.iterdir()}


def test_each_file_is_plain_gzip_and_brotli(built) -> None:
    plain = {name for name in built if not name.endswith((".gz", ".br"))}
    assert {"index.html"} < plain
    assert set(built) == plain | {f"{name}.gz" for name in plain} | {f"{name}.br" for name in plain}
    for name in plain:
        assert gzip.decompress(built[f"{name}.gz"]) == built[name]
        assert bytes(cramjam.brotli.decompress(built[f"{name}.br"])) == built[name]


def test_scripts_are_within_the_size_limit(built) -> None:
    sizes = {name: len(each) for name, each in built.items() if name.endswith(".js.gz")}
    assert len(sizes) > 10
    assert sum(sizes.values()) <= SCRIPT_BYTES_MAX, sizes


def test_page_loads_only_its_own_files(built) -> None:
    """The HTML has no inline script or style, which its content-security-policy forbids. Nothing is loaded from other
    hosts.
    """
    index = built["index.html"].decode()
    named = re.findall(r'(?:src|href)="([^"]*)"', index)
    assert len(named) >= 4
    assert {name for name in named if name.startswith("/assets/")} == set(named) - {"/plain"}
    assert {name.removeprefix("/assets/") for name in named if name != "/plain"} <= set(built)
    assert re.findall(r"<script[^>]*>([^<]*)</script>", index) == [""]
    assert "<style" not in index
    assert " style=" not in index
    scripts = "".join(each.decode() for name, each in built.items() if name.endswith(".js"))
    imported = set(re.findall(r'(?:from|import)\s*\(?"(\./[^"]+)"', scripts))
    assert imported
    assert {name.removeprefix("./") for name in imported} <= set(built)
    # Namespaces like SVG's are only names and are not fetched.
    hosts = set(re.findall(r"https?://([\w.-]+)", scripts)) - {"www.w3.org"}
    assert hosts == set()
    assert "dangerouslySetInnerHTML=" not in scripts


def test_start_does_not_use_intl(built) -> None:
    """The first use of Intl makes a browser load its data, which takes as long as all scripts of the page."""
    start = re.findall(r'"/assets/([^"]*\.js)"', built["index.html"].decode())
    assert len(start) >= 2
    for name in start:
        assert not re.search(rb"\bIntl\b|toLocale|localeCompare", built[name]), name


def test_lock_file_names_no_host() -> None:
    text = (SOURCES / "package-lock.json").read_text("utf-8")
    packages = json.loads(text)["packages"]
    assert all("resolved" not in each for each in packages.values())
    assert all("integrity" in each for path, each in packages.items() if path)


def test_source_distribution_contains_the_page_sources(tmp_path) -> None:
    ignored = shutil.ignore_patterns(".*", "tests", "docs", "interop", "node_modules", "dist", "schema.d.ts")
    shutil.copytree(ROOT, tmp_path / "here", symlinks=True, ignore=ignored)
    command = [sys.executable, "setup.py", "-q", "sdist", "-d", str(tmp_path)]
    subprocess.run(
        command, cwd=tmp_path / "here", env={**os.environ, "AMQPD_INTERPRETED": "1"}, check=True, timeout=300
    )
    (found,) = tmp_path.glob("amqpd-*.tar.gz")
    with tarfile.open(found) as packed:
        packed_files = {Path(*Path(name).parts[1:]) for name in packed.getnames()}
    names = ("build.mjs", "package.json", "package-lock.json", "src/index.html", "src/main.tsx")
    wanted = {PAGE / name for name in names}
    assert wanted <= packed_files
    assert not any("node_modules" in path.parts for path in packed_files)
