"""Permissions: patterns for names, kept in memory, with a cache of answers.

A permission has three regular expressions (configure, write, read) for the names of exchanges and queues, per user
and vhost. A topic permission has two (write, read) for routing keys, per user, vhost and exchange. RabbitMQ's rules
apply:

- A pattern is searched anywhere in the name. An empty pattern matches only the empty name.
- Names are bytes: `.` is one byte of UTF-8.
- The name of the default exchange is `amq.default`.
- Without a topic permission for an exchange, all routing keys are allowed.

Users write the patterns, so RE2 runs them in time linear in the name. In a backtracking engine, `^(a+)+$` takes
seconds for 25 letters. RE2 has no look-around and no back-references; such patterns are rejected. Unlike in PCRE, `$`
does not match before a final newline.

Invariants:

- The cache contains only answers since the last change.
- A pattern that does not compile is rejected. If another program wrote it into the database, it is logged and matches
  nothing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from amqpd.storage.metadata.rows import PermissionRow, TopicPermissionRow

Kind: TypeAlias = Literal["configure", "write", "read"]
TopicKind: TypeAlias = Literal["write", "read"]

logger = logging.getLogger(__name__)

PATTERN_MAX: Final = 4096
"""Length limit of a pattern in bytes."""
CACHE_MAX: Final = 8192
"""Size limit of the cache of answers."""
_PROGRAM_BYTES_MAX: Final = 1 << 20
SEARCH_BYTES_MAX: Final = 1 << 17
"""Memory limit of a pattern that a user sends with a request, in bytes: enough for PATTERN_MAX letters."""
CLASSES_MAX: Final = 64
"""Limit of Unicode's classes, such as `\\p{L}`, in a pattern."""
FOLDED_CLASSES_MAX: Final = 2
"""The same if the pattern ignores case: then RE2 takes 10 to 36 ms to compile one."""
SET_BYTES_MAX: Final = 4 << 20
"""Memory limit of a `PatternSet` in bytes."""
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_IGNORES_CASE: Final = re.compile(r"\(\?[a-zA-Z]*i")


class InvalidPattern(ValueError):
    """A regular expression that RE2 rejects. The text is the reason."""


class PermissionPattern:
    """A compiled pattern, searched in the bytes of a name. `raw` is its text."""

    __slots__ = ("_search", "raw")

    def __init__(self, search: Callable[[bytes], Any], raw: bytes = b"") -> None:
        self._search = search
        self.raw = raw

    def matches(self, name: str) -> bool:
        """Return whether the pattern occurs in `name`. Bytes that are not UTF-8 are surrogate escapes.

        Cost: 1 us, linear.
        """
        return self._search(name.encode("utf-8", "surrogateescape")) is not None


@lru_cache(maxsize=4)
def _engine(bytes_max: int = _PROGRAM_BYTES_MAX) -> tuple[Any, Any]:
    """Return the module re2, imported late (3 ms), and our options. `bytes_max`: memory of a pattern or a set."""
    import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # RabbitMQ: names are bytes
    options.log_errors = False
    options.max_mem = bytes_max
    return re2, options


@lru_cache(maxsize=1024)
def compile_pattern(text: str) -> PermissionPattern:
    """Compile `text` as RabbitMQ reads it: not anchored, and '' means '^$'. Policies use it too.

    Raises: InvalidPattern.
    Cost: 25 us, then cached; at worst some ten milliseconds.
    """
    return _compiled(text, _PROGRAM_BYTES_MAX)


def compile_search(text: str) -> PermissionPattern:
    """Compile a pattern that a user sends with a request, as `compile_pattern` does.

    It is not cached, because such patterns are many. Its memory is SEARCH_BYTES_MAX: a search takes 10 ms at most.
    """
    return _compiled(text, SEARCH_BYTES_MAX)


def _compiled(text: str, bytes_max: int) -> PermissionPattern:
    re2, options = _engine(bytes_max)
    try:
        raw = (text or "^$").encode()
    except UnicodeEncodeError:
        raise InvalidPattern(f"{text!r} is not UTF-8") from None
    if len(raw) > PATTERN_MAX:
        raise InvalidPattern(f"a pattern can have at most {PATTERN_MAX} bytes, not {len(raw)}")
    count = sum(letter in "pP" for letter in _ESCAPED.findall(text))
    if count > (FOLDED_CLASSES_MAX if _IGNORES_CASE.search(text) else CLASSES_MAX):
        limits = f"at most {CLASSES_MAX} classes like \\p{{L}}, and {FOLDED_CLASSES_MAX} if it ignores case"
        raise InvalidPattern(f"a pattern can have {limits}")
    try:
        return PermissionPattern(re2.compile(raw, options).search, raw)
    except re2.error as error:
        reason = error.args[0] if error.args else b"unknown error"
        reason = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidPattern(f"{text!r} is not a regular expression of RE2: {reason}") from None


class PatternSet:
    """One automaton for many patterns.

    Cost: 3 to 10 us per pattern. Raises: InvalidPattern if RE2 needs more memory than SET_BYTES_MAX.
    """

    def __init__(self, patterns: Sequence[PermissionPattern]) -> None:
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


def compile_topic_pattern(text: str, user: str, vhost: str) -> PermissionPattern:
    """Compile a pattern with {username} and {vhost} replaced and escaped. Raises: InvalidPattern.

    Without the escaping, a user called `.*` would gain permissions.
    """
    re2, _ = _engine()
    for variable, value in (("{username}", user), ("{vhost}", vhost)):
        text = text.replace(variable, str(re2.escape(value)))
    return compile_pattern(text)


class _Topic(NamedTuple):
    write: PermissionPattern
    read: PermissionPattern


def _never(_: bytes) -> None:
    return None


_NO_TOPIC: Final = _Topic(PermissionPattern(_never), PermissionPattern(_never))


class Permissions:
    """The permissions of all users in memory. `InternalBackend` stores them."""

    def __init__(
        self,
        rows: Iterable[PermissionRow] = (),
        topic_rows: Iterable[TopicPermissionRow] = (),
        cache_max: int = CACHE_MAX,
    ) -> None:
        self._rows = {(row.user, row.vhost): row for row in rows}
        self._topics = {(row.user, row.vhost, row.exchange): row for row in topic_rows}
        self._cache: dict[tuple[str, str, str, str], bool] = {}
        self._cache_max = cache_max
        self._compiled_topics: dict[tuple[str, str, str], _Topic] = {}

    # --- questions --------------------------------------------------------------------------------------------------

    def may_access_vhost(self, user: str, vhost: str) -> bool:
        """Return whether the user has a permission in the vhost, with any patterns (RabbitMQ)."""
        return (user, vhost) in self._rows

    def is_allowed(self, user: str, vhost: str, kind: Kind, name: str) -> bool:
        """Return whether the pattern of `kind` matches `name`. Cost: 0.2 us from the cache."""
        key = (user, vhost, kind, name)
        answer = self._cache.get(key)
        if answer is None:
            row = self._rows.get((user, vhost))
            answer = False
            if row is not None:
                text = row.configure if kind == "configure" else row.write if kind == "write" else row.read
                try:
                    answer = compile_pattern(text).matches(name)
                except InvalidPattern as error:
                    logger.error("a permission of user %r in vhost %r is invalid: %s", user, vhost, error)
            if len(self._cache) >= self._cache_max:
                del self._cache[next(iter(self._cache))]
            self._cache[key] = answer
        return answer

    def has_topic_permission(self, user: str, vhost: str, exchange: str) -> bool:
        """Return whether `is_topic_allowed` depends on the routing key for this exchange."""
        return (user, vhost, exchange) in self._topics

    def is_topic_allowed(self, user: str, vhost: str, exchange: str, kind: TopicKind, routing_key: str) -> bool:
        """Return whether the user may publish with the routing key (write) or bind with it (read).

        Not cached, because there are too many routing keys. Cost: 0.1 us without a topic permission, 2 us with one.
        """
        key = (user, vhost, exchange)
        row = self._topics.get(key)
        if row is None:
            return True
        compiled = self._compiled_topics.get(key)
        if compiled is None:
            try:
                compiled = _compile_topic(row)
            except InvalidPattern as error:
                logger.error("a topic permission of user %r in vhost %r is invalid: %s", user, vhost, error)
                compiled = _NO_TOPIC
            self._compiled_topics[key] = compiled
        return (compiled.write if kind == "write" else compiled.read).matches(routing_key)

    def find(self, like: PermissionRow | TopicPermissionRow) -> PermissionRow | TopicPermissionRow | None:
        """Return the stored row with the same key as `like`."""
        if isinstance(like, TopicPermissionRow):
            return self._topics.get((like.user, like.vhost, like.exchange))
        return self._rows.get((like.user, like.vhost))

    def rows(self, user: str | None = None, vhost: str | None = None) -> list[PermissionRow]:
        """Return permissions ordered by user and vhost, filtered by user and vhost if given."""
        return sorted(row for row in self._rows.values() if user in (None, row.user) and vhost in (None, row.vhost))

    def topic_rows(self, user: str | None = None, vhost: str | None = None) -> list[TopicPermissionRow]:
        """Return topic permissions ordered by user, vhost and exchange, filtered by user and vhost if given."""
        return sorted(row for row in self._topics.values() if user in (None, row.user) and vhost in (None, row.vhost))

    # --- changes ----------------------------------------------------------------------------------------------------

    @staticmethod
    def check_patterns(row: PermissionRow | TopicPermissionRow) -> None:
        """Raise InvalidPattern if a pattern of the row does not compile."""
        if isinstance(row, TopicPermissionRow):
            _compile_topic(row)
        else:
            for pattern in (row.configure, row.write, row.read):
                compile_pattern(pattern)

    def put(self, row: PermissionRow | TopicPermissionRow) -> None:
        """Add or replace a row. The caller has called `check`."""
        if isinstance(row, TopicPermissionRow):
            self._topics[row.user, row.vhost, row.exchange] = row
        else:
            self._rows[row.user, row.vhost] = row
        self.clear_cache()

    def remove(self, rows: Iterable[PermissionRow | TopicPermissionRow]) -> None:
        """Remove the rows with these keys, if they exist."""
        for row in rows:
            if isinstance(row, TopicPermissionRow):
                self._topics.pop((row.user, row.vhost, row.exchange), None)
            else:
                self._rows.pop((row.user, row.vhost), None)
        self.clear_cache()

    def clear_cache(self) -> None:
        self._cache.clear()
        self._compiled_topics.clear()


def _compile_topic(row: TopicPermissionRow) -> _Topic:
    return _Topic(
        compile_topic_pattern(row.write, row.user, row.vhost), compile_topic_pattern(row.read, row.user, row.vhost)
    )
