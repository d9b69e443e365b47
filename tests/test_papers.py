"""READMEs and docs lead somewhere: every relative link, and every file of ours that they name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("amqpd", "routing", "storage", "cli", "docs", "tests", "interop")
PAPERS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.md")) if "node_modules" not in path.parts),
]
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
NAMED = re.compile(r"`([\w./-]*\w\.py)`")
MADE = re.compile(r"<!-- (?:file|append): (\S+) -->")
"""What a manual has its reader make: tests/docs makes it."""

ELSEWHERE = {"t/integration/test_py_amqp.py", "t/integration/test_rmq.py", "manage.py", "charge.py"}
"""Files of other projects, and of the reader's own."""


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("paper", PAPERS, ids=shown)
def test_its_links_lead_somewhere(paper: Path) -> None:
    links = [link for link in LINK.findall(paper.read_text("utf-8")) if "://" not in link]
    assert [link for link in links if not (paper.parent / link).exists()] == []


@pytest.mark.parametrize("paper", [paper for paper in PAPERS if paper.name != "DECISIONS.md"], ids=shown)
def test_the_files_it_names_are_there(paper: Path) -> None:
    """From the paper's folder or one above it, or anywhere by a bare name. Decisions may tell of files that went."""
    anywhere = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")} | {"setup.py"}
    above = [*(each for each in paper.parents if each.is_relative_to(ROOT)), ROOT / "tests", ROOT / "amqpd"]
    text = paper.read_text("utf-8")
    missing = [
        name
        for name in NAMED.findall(text)
        if name not in ELSEWHERE | set(MADE.findall(text))
        and not (name in anywhere if "/" not in name else any((folder / name).exists() for folder in above))
    ]
    assert missing == []
