"""A page of the documentation as blocks: language, text, line, and the marks before each fence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
LANGUAGES: Final = (
    "python", "sh", "toml", "ini", "http", "sql", "json", "yaml", "java", "xml", "go", "javascript",
    "text",
)  # fmt: skip
MARKS: Final = (
    "not run", "run by", "prints", "prints, numbers at least", "answers",
    "file", "append", "background", "exit", "before",
)  # fmt: skip
PAGE_MARKS: Final = ("broker", "needs")
FENCE: Final = re.compile(
    r"^(?P<fence>`{3,})(?P<language>[^`\n]*)\n(?P<text>.*?)^(?P=fence)[ \t]*$", re.MULTILINE | re.DOTALL
)
COMMENT: Final = re.compile(r"<!--\s*(?P<name>[a-z, ]+?)(?::\s*(?P<value>.*?))?\s*-->", re.DOTALL)
COMMANDS: Final = re.compile(r"^\$? ?(amqpctl|amqpd -|make|curl|pip|python) ", re.MULTILINE)
INDENTED: Final = re.compile(r"^\n(?: {4}|\t)(?![-*+ ]|\d+\. )\S", re.MULTILINE)


class Block(NamedTuple):
    """One fenced block. marks: name -> value, "" for a mark without one. line: that of the fence, counted from 1."""

    page: str
    line: int
    language: str
    text: str
    marks: dict[str, str]

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


class PageMark(NamedTuple):
    """A mark of the page, at its position between blocks."""

    name: str
    value: str


class Page(NamedTuple):
    name: str
    text: str
    parts: list[Block | PageMark]

    @property
    def blocks(self) -> list[Block]:
        return [part for part in self.parts if isinstance(part, Block)]

    def all_of(self, name: str) -> list[str]:
        """Return the values of the page's marks of this name."""
        return [part.value for part in self.parts if isinstance(part, PageMark) and part.name == name]


def names() -> list[str]:
    """Return written and generated pages as paths below the root, without the site that `make docs` builds."""
    site = DOCS / "site"
    found = [path for path in sorted(DOCS.rglob("*.md")) if site not in path.parents]
    return ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *(str(path.relative_to(ROOT)) for path in found)]


def read(name: str) -> Page:
    return parse(name, (ROOT / name).read_text("utf-8"))


def parse(name: str, text: str) -> Page:
    parts: list[Block | PageMark] = []
    end = 0
    for fence in FENCE.finditer(text):
        between = text[end : fence.start()]
        marks: dict[str, str] = {}
        for comment in COMMENT.finditer(between):
            if comment["name"] in PAGE_MARKS:
                parts.append(PageMark(comment["name"], comment["value"] or ""))
            elif not between[comment.end() :].strip() or COMMENT.match(between[comment.end() :].strip()):
                marks[comment["name"]] = comment["value"] or ""
        line = text.count("\n", 0, fence.start()) + 1
        parts.append(Block(name, line, fence["language"].strip(), fence["text"], marks))
        end = fence.end()
    return Page(name, text, parts)


def faults(page: Page) -> list[str]:
    """Return violations: a block without a language, an unknown mark, code outside of fences."""
    violations = []
    for block in page.blocks:
        if block.language not in LANGUAGES:
            violations.append(f"{block.where}: the language {block.language!r} is none of {', '.join(LANGUAGES)}")
        violations += [f"{block.where}: the mark {name!r} is not known" for name in block.marks if name not in MARKS]
        if "not run" in block.marks and not block.marks["not run"]:
            violations.append(f"{block.where}: not run, without a reason")
        reason = block.marks.get("not run", "") + block.marks.get("run by", "")
        named = re.findall(r"\btests/[\w/.]+\b", reason)
        violations += [f"{block.where}: there is no {path}" for path in named if not (ROOT / path).exists()]
        if block.language == "text" and COMMANDS.search(block.text):
            violations.append(f"{block.where}: commands belong into a block of sh")
    outside = FENCE.sub(lambda fence: "\n" * fence.group().count("\n"), page.text)
    for indented in INDENTED.finditer(outside):
        line = outside.count("\n", 0, indented.start()) + 2
        violations.append(f"{page.name}:{line}: code that is indented; use a fence")
    return violations
