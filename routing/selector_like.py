"""LIKE: `%` stands for any characters, `_` for one; the escape character takes the meaning of what follows it.

A pattern is cut at its `%` into pieces. The first must begin the text, the last must end it, and those between are
looked for from left to right, each behind the one before, which is all that backtracking could find. A piece without
`_` is looked for by the string's own search (linear), one with `_` place by place, so the cost of a text is its length
times the pieces, or the characters of pieces with `_`. A selector may not have many of either.

Compiled by mypyc.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias, final

from amqpd.routing.errors import BadSelector

LOOSE_CHARACTERS_MAX: Final = 32
"""Of all pieces in one selector that have `_` in them and a `%` on both sides."""
SEARCHES_MAX: Final = 20
"""Pieces in one selector without `_` and with a `%` on both sides. All together cost 20 ms at most for a text of
128 KiB, the largest that a frame holds, and usually a thousandth of that.
"""

_Piece: TypeAlias = list[str | None]  # None: any one character


class Pattern:
    """What says whether a text is like a pattern, all of it.

    loose: characters that are looked for place by place. searches: pieces that are looked for otherwise.
    """

    loose: int = 0
    searches: int = 0

    def matches(self, text: str) -> bool:
        raise NotImplementedError


def pattern_of(pattern: str, escape: str) -> Pattern:
    """The pattern, taken apart.

    escape: one character, "" for none. Raises: BadSelector (without a place).
    """
    pieces = _pieces(pattern, escape)
    first = pieces[0]
    if len(pieces) == 1:
        return _Loose(first) if None in first else _Exact(_text(first))
    last = pieces[len(pieces) - 1]
    between = [piece for piece in pieces[1 : len(pieces) - 1] if piece]
    if None in first or None in last or any([None in piece for piece in between]):  # noqa: C419
        return _LoosePieces(first, between, last)
    if not between:
        return _Ends(_text(first), _text(last))
    if len(between) == 1 and not first and not last:
        return _Inside(_text(between[0]))
    return _Pieces(_text(first), [_text(piece) for piece in between], _text(last))


def _pieces(pattern: str, escape: str) -> list[_Piece]:
    piece: _Piece = []
    pieces: list[_Piece] = [piece]
    escaped = False
    for character in pattern:
        if escaped:
            piece.append(character)
            escaped = False
        elif character == escape:
            escaped = True
        elif character == "%":
            piece = []
            pieces.append(piece)
        elif character == "_":
            piece.append(None)
        else:
            piece.append(character)
    if escaped:
        raise BadSelector("the LIKE pattern ends with its escape character")
    return pieces


def _text(piece: _Piece) -> str:
    return "".join([character for character in piece if character is not None])


def _expression(piece: _Piece) -> re.Pattern[str]:
    return re.compile("".join(["." if c is None else re.escape(c) for c in piece]), re.DOTALL)


@final
class _Exact(Pattern):
    def __init__(self, text: str) -> None:
        self._text: Final = text

    def matches(self, text: str) -> bool:
        return text == self._text


@final
class _Ends(Pattern):
    """first%last, either of which may be empty."""

    def __init__(self, first: str, last: str) -> None:
        self._first: Final = first
        self._last: Final = last
        self._size_min: int = len(first) + len(last)

    def matches(self, text: str) -> bool:
        return len(text) >= self._size_min and text.startswith(self._first) and text.endswith(self._last)


@final
class _Inside(Pattern):
    """%text%"""

    def __init__(self, text: str) -> None:
        self._text: Final = text
        self.searches = 1

    def matches(self, text: str) -> bool:
        return self._text in text


@final
class _Pieces(Pattern):
    """first%between%...%last"""

    def __init__(self, first: str, between: list[str], last: str) -> None:
        self._first: Final = first
        self._between: Final = between
        self._last: Final = last
        self._size_min: int = len(first) + len(last)
        self.searches = len(between)

    def matches(self, text: str) -> bool:
        if len(text) < self._size_min or not text.startswith(self._first) or not text.endswith(self._last):
            return False
        position = len(self._first)
        end = len(text) - len(self._last)
        for piece in self._between:
            found = text.find(piece, position, end)
            if found < 0:
                return False
            position = found + len(piece)
        return True


@final
class _Loose(Pattern):
    """A pattern without %."""

    def __init__(self, piece: _Piece) -> None:
        self._expression: Final = _expression(piece)

    def matches(self, text: str) -> bool:
        return self._expression.fullmatch(text) is not None


@final
class _LoosePieces(Pattern):
    """first%between%...%last with places for any one character."""

    def __init__(self, first: _Piece, between: list[_Piece], last: _Piece) -> None:
        self._first: Final = _expression(first)
        self._between: Final = [_expression(piece) for piece in between]
        self._last: Final = _expression(last)
        self._first_size: int = len(first)
        self._last_size: int = len(last)
        self.loose = sum([len(piece) for piece in between if None in piece])
        self.searches = sum([1 for piece in between if None not in piece])

    def matches(self, text: str) -> bool:
        position = self._first_size
        end = len(text) - self._last_size
        if end < position or self._first.match(text) is None or self._last.match(text, end) is None:
            return False
        for piece in self._between:
            found = piece.search(text, position, end)
            if found is None:
                return False
            position = found.end()
        return True
