"""Docstrings and comments of the product are in plain words: the prose check has no findings.

`.venv-interpreted/bin/python tests/house/source_prose.py amqpd.routing` prints the findings of `amqpd.routing`.
"""

from __future__ import annotations

import ast

from docstring_names import unknown_entries
from source_prose import findings, findings_of, paragraphs
from sources import sources, tree_of


def test_product_has_no_findings() -> None:
    assert [line for lines in findings().values() for line in lines] == []


def test_docstrings_document_attributes_and_parameters_that_exist() -> None:
    assert list(unknown_entries({module: tree_of(module) for module in sources()})) == []


def test_entry_without_attribute_or_parameter_is_found() -> None:
    text = '''
class Base:
    inherited = 1

class Log(Base):
    """A log.

    Args:
        path: its file.

    Attributes:
        size, end: both exist.
        inherited: in the base.
        ended: renamed.
    """

    def __init__(self, path: str) -> None:
        self.size = self.end = 0

    def append(self, data: bytes) -> None:
        """Append.

        Args:
            data: exists.
            record: does not.
        """
'''
    assert list(unknown_entries({"log": ast.parse(text)})) == ["log:5 ended", "log:20 record"]


def test_check_finds_violations() -> None:
    long = "word " * 31
    text = f'''"""What it is."""
# Nobody reads
# {long}
x = 1  # told
"""Of the first kind."""

def f():
    """Return `nobody` or ``told``.

    {long}
    """
'''
    assert [(line, finding.partition(":")[0]) for line, finding in findings_of(text)] == [
        (1, "begins with 'What'"),
        (2, "'Nobody'"),
        (2, "a sentence of more than 30 words"),
        (4, "'told'"),
        (5, "begins with 'Of'"),
        (10, "a sentence of more than 30 words"),
    ]


def test_check_accepts_plain_prose() -> None:
    half = "word " * 20
    text = f'''"""A noun phrase.

{half}

- {half}
- {half}
  {half[:40]}

size: {half}
    returns: {half}
"""
# {half.strip()}. {half.capitalize()}
x = 1  # noqa: told
'''
    assert findings_of(text) == []


def test_table_rows_are_checked_separately() -> None:
    assert [line for line, _ in paragraphs("one\ntwo\n\na  b\nc  d\n")] == [0, 3, 4]
