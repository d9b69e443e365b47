r"""Regular expressions of users: patterns of permissions and policies, and those of requests.

RE2 matches them in time linear in the name. In a backtracking engine, `^(a+)+$` takes seconds for 25 letters. RabbitMQ
uses PCRE, where many patterns begin with look-ahead, such as `^(?!amq\.).*`, which RE2 lacks. There it means a second
expression that must match or must not, so a `NamePattern` has several expressions. Other look-around, more than
LOOKS_MAX of it, and back-references are refused.

A pattern may match anywhere in the name. Names are bytes: `.` is one byte of UTF-8. Unlike in PCRE, `$` does not match
before a final newline.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

PATTERN_MAX: Final = 4096
"""Length limit of a pattern in bytes."""
LOOKS_MAX: Final = 10
"""Maximum of look-aheads in one pattern: each name is matched against all of them."""
SEARCH_BYTES_MAX: Final = 1 << 17
"""Memory limit of a pattern that a user sends with a request, in bytes: enough for PATTERN_MAX letters."""
CLASSES_MAX: Final = 64
"""Limit of Unicode's classes, such as `\\p{L}`, in a pattern."""
FOLDED_CLASSES_MAX: Final = 2
"""The same if the pattern ignores case: then RE2 takes 10 to 36 ms to compile one."""
SET_BYTES_MAX: Final = 4 << 20
"""Memory limit of a `PatternSet` in bytes."""
_PROGRAM_BYTES_MAX: Final = 1 << 20
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_IGNORES_CASE: Final = re.compile(r"\(\?[a-zA-Z]*i")
_START: Final = re.compile(r"(?P<flags>(?:\(\?[is]+\))*)(?:\^|\\A)")
_QUANTIFIERS: Final = ("*", "+", "?", "{")


class InvalidPattern(ValueError):
    """A regular expression that is refused. The text is the reason."""


class Expression(NamedTuple):
    """A compiled expression of RE2. `search` returns None if it does not occur in the bytes; `raw` is its text."""

    search: Callable[[bytes], Any]
    raw: bytes = b""


class NamePattern:
    """A pattern that matches a name if all expressions of `wanted` match it, and none of `unwanted`."""

    __slots__ = ("unwanted", "wanted")

    def __init__(self, wanted: tuple[Expression, ...], unwanted: tuple[Expression, ...] = ()) -> None:
        self.wanted = wanted
        self.unwanted = unwanted

    def matches(self, name: str) -> bool:
        """Return whether the name matches. Bytes that are not UTF-8 are surrogate escapes.

        Cost: 1 us per expression, linear in the name.
        """
        data = name.encode("utf-8", "surrogateescape")
        for each in self.wanted:
            if each.search(data) is None:
                return False
        for each in self.unwanted:  # noqa: SIM110 - one call less than any()
            if each.search(data) is not None:
                return False
        return True

    def matches_if_last(self, name: str) -> bool:
        """Return whether a name matches that matches the last one of `wanted`."""
        return (len(self.wanted) == 1 and not self.unwanted) or self.matches(name)


@lru_cache(maxsize=16)
def _engine(bytes_max: int = _PROGRAM_BYTES_MAX) -> tuple[Any, Any]:
    """Return the module re2, imported late (3 ms), and our options. `bytes_max`: memory of an expression or a set."""
    import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # RabbitMQ: names are bytes
    options.log_errors = False
    options.max_mem = bytes_max
    return re2, options


def escape(text: str) -> str:
    """Return a pattern of exactly this text."""
    re2, _ = _engine()
    return str(re2.escape(text))


@lru_cache(maxsize=1024)
def compile_pattern(text: str) -> NamePattern:
    """Compile the pattern of a permission or policy.

    Cost: 25 us, then cached; at worst 0.1 s, for FOLDED_CLASSES_MAX classes. Raises: InvalidPattern.
    """
    return _compile(text, _PROGRAM_BYTES_MAX)


def compile_search(text: str) -> NamePattern:
    """Compile a pattern that a user sends with a request. Raises: InvalidPattern.

    It is not cached, because such patterns are many. Its memory is SEARCH_BYTES_MAX: a search takes 10 ms at most, or
    25 ms with look-aheads, which share the memory.
    """
    return _compile(text, SEARCH_BYTES_MAX)


def _compile(text: str, bytes_max: int) -> NamePattern:
    _check_size(text)
    try:
        return NamePattern((_expression(text, bytes_max),))
    except InvalidPattern as refused:
        return _split_look_aheads(text, bytes_max, refused)


def _check_size(text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidPattern(f"{text!r} is not UTF-8") from None
    if size > PATTERN_MAX:
        raise InvalidPattern(f"a pattern can have at most {PATTERN_MAX} bytes, not {size}")
    count = sum(letter in "pP" for letter in _ESCAPED.findall(text))
    if count > (FOLDED_CLASSES_MAX if _IGNORES_CASE.search(text) else CLASSES_MAX):
        limits = f"at most {CLASSES_MAX} classes like \\p{{L}}, and {FOLDED_CLASSES_MAX} if it ignores case"
        raise InvalidPattern(f"a pattern can have {limits}")


def _expression(text: str, bytes_max: int) -> Expression:
    re2, options = _engine(bytes_max)
    raw = text.encode()
    try:
        return Expression(re2.compile(raw, options).search, raw)
    except re2.error as error:
        reason = error.args[0] if error.args else b"unknown error"
        reason = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidPattern(f"{text!r} is not a regular expression of RE2: {reason}") from None


def _split_look_aheads(text: str, bytes_max: int, refused: InvalidPattern) -> NamePattern:
    """Split a pattern that begins with look-ahead into several expressions. Raises `refused` if that is impossible."""
    start = _START.match(text)
    if start is None:
        raise refused
    flags, rest = start["flags"], text[start.end() :]
    wanted: list[str] = []
    unwanted: list[str] = []
    while rest.startswith(("(?!", "(?=")):
        end = _group_end(rest)
        if end < 0 or rest[end + 1 :].startswith(_QUANTIFIERS) or len(wanted) + len(unwanted) == LOOKS_MAX:
            raise refused
        (unwanted if rest[2] == "!" else wanted).append(rest[3:end])
        rest = rest[end + 1 :]
    if (not wanted and not unwanted) or _has_alternatives(rest):
        raise refused
    wanted.append(rest)
    if bytes_max == SEARCH_BYTES_MAX:
        bytes_max //= len(wanted) + len(unwanted)
    return NamePattern(
        tuple(_expression(f"{flags}^(?:{each})", bytes_max) for each in wanted),
        tuple(_expression(f"{flags}^(?:{each})", bytes_max) for each in unwanted),
    )


def _group_end(text: str) -> int:
    """Return the index of the `)` that ends the group at the start of `text`, or -1."""
    return next((index for index, letter, depth in _syntax(text) if letter == ")" and depth == 0), -1)


def _has_alternatives(text: str) -> bool:
    """Return whether a `|` is outside all groups: it would be an alternative to the look-ahead too."""
    return any(letter == "|" and depth == 0 for _, letter, depth in _syntax(text))


def _syntax(text: str) -> Iterator[tuple[int, str, int]]:
    """Yield index, character and group depth of the characters that are not escaped and not in a class.

    The depth at a `)` is the depth after it.
    """
    depth = 0
    index = 0
    while index < len(text):
        letter = text[index]
        if letter == "\\":
            index += 1
        elif letter == "[":
            index = _class_end(text, index)
        else:
            depth += (letter == "(") - (letter == ")")
            yield index, letter, depth
        index += 1


def _class_end(text: str, start: int) -> int:
    """Return the index of the `]` that ends the class at `start`. A `]` at the front belongs to the class."""
    index = start + 1
    if text[index : index + 1] == "^":
        index += 1
    if text[index : index + 1] == "]":
        index += 1
    while index < len(text) and text[index] != "]":
        index += 2 if text[index] == "\\" else 1
    return index


class PatternSet:
    """One automaton for many patterns.

    Cost: 3 to 10 us per pattern. Raises: InvalidPattern if RE2 needs more memory than SET_BYTES_MAX.
    """

    def __init__(self, patterns: Sequence[Expression]) -> None:
        re2, options = _engine(SET_BYTES_MAX)
        found = re2.Set.SearchSet(options)
        try:
            for each in patterns:
                found.Add(each.raw)
            # This one matches every name: if it does not, the search had no memory.
            found.Add(b"")
            found.Compile()
        except re2.error:
            raise InvalidPattern(f"{len(patterns)} patterns need more than {SET_BYTES_MAX} bytes") from None
        self._match: Callable[[bytes], list[int] | None] = found.Match

    def matching(self, name: str) -> list[int] | None:
        """Return the indices of all patterns that occur in `name`, in order; None if RE2 has no memory for the search.

        Cost: 2 us, linear in the name and in the result. At worst half of what the patterns cost one by one, if many
        begin with `.*`.
        """
        found = self._match(name.encode("utf-8", "surrogateescape"))
        return sorted(found)[:-1] if found else None
