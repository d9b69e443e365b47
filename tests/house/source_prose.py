"""Findings of the rules for prose in docstrings and comments of the product.

`python tests/house/source_prose.py` prints the number of each package, and with the name of a package its findings.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import textwrap
import tokenize
from collections.abc import Iterator
from typing import Final, NamedTuple

from prose import forbidden_words, long_sentences
from sources import ROOT, nodes, package_of, parse, sources

FIRST_WORDS: Final = frozenset({"what", "who", "whether", "of", "it", "those", "where", "that", "they"})
"""A docstring that begins so has no subject yet."""

_CODE: Final = re.compile(r"``.+?``|`[^`]+`", re.DOTALL)
_CODES: Final = re.compile(r"CODE(?:[\s,]+(?:and |or )?CODE)+")
_DIRECTIVE: Final = re.compile(r"#!|#\s*(?:noqa|type:|fmt:|ruff:|pragma|pylint|mypy:)")
_ITEM: Final = re.compile(r"(?:[-*]|\d+\.)\s+|\*{0,2}\w+(?: \([^)]*\))?: ")
_RULE: Final = re.compile(r"[-=#\s]{4,}")
_COLUMNS: Final = re.compile(r"\S {2,}\S")


class Text(NamedTuple):
    """A docstring, or a comment without its `#`."""

    line: int
    text: str
    is_docstring: bool


def texts(source: str) -> Iterator[Text]:
    """Yield the docstrings of modules, classes, functions and assigned names, then the comments."""
    for node in nodes(parse(source)):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        if isinstance(node.value.value, str):
            yield Text(node.lineno, node.value.value, is_docstring=True)
    yield from _comments(source)


def _comments(source: str) -> Iterator[Text]:
    """Yield comments. Lines of comment below each other, without code, are one."""
    begin, lines, last = 0, list[str](), 0
    if "#" not in source:
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or _DIRECTIVE.match(token.string):
            continue
        alone = not token.line[: token.start[1]].strip()
        if not (alone and lines and token.start[0] == last + 1):
            if lines:
                yield Text(begin, "\n".join(lines), is_docstring=False)
            begin, lines = token.start[0], []
        lines.append(token.string.lstrip("#").removeprefix(" "))
        last = token.start[0] if alone else 0
    if lines:
        yield Text(begin, "\n".join(lines), is_docstring=False)


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Cut a text at empty lines, items of lists, changed indents and rows of tables. Yield line, from 0, and text."""
    begin, lines, indent = 0, list[str](), 0
    for number, line in enumerate([*text.split("\n"), ""]):
        content = line.strip()
        depth = len(line) - len(line.lstrip())
        starts = not content or _ITEM.match(content) or depth < indent or (lines and depth > indent + 2)
        if lines and (starts or _COLUMNS.search(content)):
            yield begin, " ".join(lines)
            lines = []
        if content and not _RULE.fullmatch(content):
            if not lines:
                begin, indent = number, depth
            lines.append(content)


def findings_of(source: str) -> list[tuple[int, str]]:
    """Return what is wrong with the prose of a module, each with its line."""
    found: list[tuple[int, str]] = []
    for line, text, is_docstring in texts(source):
        lead, _, rest = text.partition("\n")
        plain = _CODE.sub(lambda code: "CODE" + "\n" * code.group().count("\n"), f"{lead}\n{textwrap.dedent(rest)}")
        found += [(line + number - 1, finding) for number, finding in forbidden_words(plain)]
        for number, paragraph in paragraphs(plain):
            for sentence in long_sentences(_CODES.sub("CODE", paragraph)):
                found.append((line + number, f"a sentence of more than 30 words: {sentence[:60]}..."))
        first = re.match(r"\w+", plain.lstrip())
        if is_docstring and first and first.group().lower() in FIRST_WORDS:
            found.append((line, f"begins with {first.group()!r}: name the subject"))
    return sorted(found)


def findings() -> dict[str, list[str]]:
    """Return the findings of each package, as `path:line: text`."""
    found: dict[str, list[str]] = {}
    for module, path in sources().items():
        lines = found.setdefault(package_of(module), [])
        lines += [f"{path.relative_to(ROOT)}:{line}: {text}" for line, text in findings_of(path.read_text("utf-8"))]
    return found


if __name__ == "__main__":
    every = findings()
    if len(sys.argv) == 1:
        print(*[f"{len(lines):5} {package}" for package, lines in every.items()], sep="\n")
    for wanted in sys.argv[1:]:
        print(*every[wanted], f"{len(every[wanted])} findings in {wanted}", sep="\n")
