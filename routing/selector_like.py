"""LIKE: `%` stands for any characters, `_` for one; the escape character takes the meaning of what follows it.

A pattern is cut at its `%` into pieces. The first must begin the text, the last must end it, and those between are
looked for from left to right, each behind the one before, which is all that backtracking could find. A piece without
`_` is looked for by the string's own search (linear); one with `_` place by place, so a selector may not have many
characters in such pieces: the cost of a text is its length times `LOOSE_CHARACTERS_MAX` at worst.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from amqpd.routing.errors import BadSelector

LOOSE_CHARACTERS_MAX: Final = 64
"""Of all pieces in one selector that have `_` in them and a `%` on both sides."""

_Piece: TypeAlias = list[str | None]  # None: any one character


class Pattern(NamedTuple):
    """How to find out whether a text is like a pattern.

    expression: Python, where it is as simple as that, with {0} for the text and {1}, {2} for `texts`; else "", and
    `matches` is to be called.
    """

    matches: Callable[[str], bool]
    expression: str = ""
    texts: tuple[str, ...] = ()


def pattern_of(pattern: str, escape: str) -> Pattern:
    """The pattern, taken apart.

    escape: one character, "" for none. Raises: BadSelector (without a place).
    """
    pieces = _pieces(pattern, escape)
    if len(pieces) == 1:
        return _whole(pieces[0])
    first, *between, last = pieces
    between = [piece for piece in between if piece]
    if None in first or None in last or any(None in piece for piece in between):
        return Pattern(_Loose(first, between, last))
    return _plain(_text(first), [_text(piece) for piece in between], _text(last))


def loose_size(pattern: str, escape: str) -> int:
    """How many characters the pieces have that are looked for place by place. Raises: BadSelector."""
    return sum([len(piece) for piece in _pieces(pattern, escape)[1:-1] if None in piece])


def _pieces(pattern: str, escape: str) -> list[_Piece]:
    pieces: list[_Piece] = [[]]
    escaped = False
    for character in pattern:
        if escaped:
            pieces[-1].append(character)
            escaped = False
        elif character == escape:
            escaped = True
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append(None if character == "_" else character)
    if escaped:
        raise BadSelector("the LIKE pattern ends with its escape character")
    return pieces


def _text(piece: _Piece) -> str:
    return "".join([character for character in piece if character is not None])


def _expression(piece: _Piece) -> re.Pattern[str]:
    return re.compile("".join(["." if c is None else re.escape(c) for c in piece]), re.DOTALL)


def _whole(piece: _Piece) -> Pattern:
    if None in piece:
        return Pattern(_Whole(piece))
    text = _text(piece)
    return Pattern(text.__eq__, "{0} == {1}", (text,))


def _plain(first: str, between: list[str], last: str) -> Pattern:
    matches = _Plain(first, between, last)
    if not between and not last:
        return Pattern(matches, "{0}.startswith({1})", (first,))
    if not between and not first:
        return Pattern(matches, "{0}.endswith({1})", (last,))
    if len(between) == 1 and not first and not last:
        return Pattern(matches, "{1} in {0}", (between[0],))
    return Pattern(matches)


class _Whole:
    """A pattern without %."""

    def __init__(self, piece: _Piece) -> None:
        self.expression: Final = _expression(piece)

    def __call__(self, text: str) -> bool:
        return self.expression.fullmatch(text) is not None


class _Plain:
    """first%between%...%last"""

    def __init__(self, first: str, between: list[str], last: str) -> None:
        self.first: Final = first
        self.between: Final = between
        self.last: Final = last
        self.size_min: Final = len(first) + len(last)

    def __call__(self, text: str) -> bool:
        end = len(text) - len(self.last)
        if len(text) < self.size_min or not text.startswith(self.first) or not text.endswith(self.last):
            return False
        position = len(self.first)
        for piece in self.between:
            found = text.find(piece, position, end)
            if found < 0:
                return False
            position = found + len(piece)
        return True


class _Loose:
    """The same where some pieces have places for any one character."""

    def __init__(self, first: _Piece, between: list[_Piece], last: _Piece) -> None:
        self.first: Final = _expression(first)
        self.between: Final = [_expression(piece) for piece in between]
        self.last: Final = _expression(last)
        self.first_size: Final = len(first)
        self.last_size: Final = len(last)

    def __call__(self, text: str) -> bool:
        position = self.first_size
        end = len(text) - self.last_size
        if end < position or self.first.match(text) is None or self.last.match(text, end) is None:
            return False
        for piece in self.between:
            found = piece.search(text, position, end)
            if found is None:
                return False
            position = found.end()
        return True
