"""Links and file names in READMEs and docs exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("amqpd", "routing", "storage", "cli", "docs", "tests", "interop")
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.md")) if "node_modules" not in path.parts),
]
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
FILE_NAME = re.compile(r"`([\w./-]*\w\.py)`")
CREATED = re.compile(r"<!-- (?:file|append): (\S+) -->")
"""Files that the reader of a manual creates; tests/docs creates them, too."""

EXTERNAL_FILES = {"t/integration/test_py_amqp.py", "t/integration/test_rmq.py", "manage.py", "charge.py"}
"""Files of other projects, and of the reader."""


def relative_path(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative_path)
def test_links_exist(document: Path) -> None:
    links = [link for link in LINK.findall(document.read_text("utf-8")) if "://" not in link]
    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize(
    "document", [document for document in DOCUMENTS if document.name != "DECISIONS.md"], ids=relative_path
)
def test_named_files_exist(document: Path) -> None:
    """The name is relative to the document's folder or one above it, or a bare name anywhere. DECISIONS.md may name
    removed files.
    """
    anywhere = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")} | {"setup.py"}
    above = [*(each for each in document.parents if each.is_relative_to(ROOT)), ROOT / "tests", ROOT / "amqpd"]
    text = document.read_text("utf-8")
    missing = [
        name
        for name in FILE_NAME.findall(text)
        if name not in EXTERNAL_FILES | set(CREATED.findall(text))
        and not (name in anywhere if "/" not in name else any((folder / name).exists() for folder in above))
    ]
    assert missing == []
