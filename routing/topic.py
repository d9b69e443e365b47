"""The topic exchange: patterns of words in a trie. No pattern can make matching slow.

A routing key is words between dots. A pattern is words too: `*` matches exactly one word, `#` any number of words
including none, any other word (`a*` too) itself. An empty word is a word, so `a.*` matches `a.`. The empty key has no
words, so only the empty pattern and `#` match it (RabbitMQ).

**Normal form.** A run of wildcards that contains `#` means "at least n words" in any order: `#.*.#` is `*.#`. Patterns
are stored with the stars of a run first and one `#` after them, so a `#` is followed by a literal or by the end.

**Matching** reads the key once and keeps the set of trie nodes reached after each word. A `#`, once reached, stays
reached: the search keeps a list of these nodes, and a stamp on each node prevents a second entry. A node has one
parent, so no node is in the set twice. The cost is at most trie nodes x words, a few dict look-ups each. A thousand
bindings `#.evtN` share one node and cost one look-up per word.

**Patterns without wildcards** are in a table of their own: one look-up of the whole key.

**Memory.** With thousands of bindings, cache misses dominate. A word is one string object in all patterns, and a node
with one literal child has no dict.

Invariants: a node except the root has a destination or a child. `destinations` of a node or of a pattern without
wildcards is the set of the binding table itself.

Source: AMQP 0-9-1, 3.1.3.3; RabbitMQ where the specification is silent.
"""

from __future__ import annotations

from sys import intern
from typing import TYPE_CHECKING, ClassVar, Final, final

from mypy_extensions import i64

from amqpd.routing.base import ROUTING_KEY
from amqpd.routing.bindings import BindingTable, union

if TYPE_CHECKING:
    from amqpd.routing.base import Arguments


ONE_WORD: Final = "*"
ANY_WORDS: Final = "#"


@final
class TrieNode:
    """A position in the trie: some words of a pattern.

    A single literal child is in `word` and `word_child`, several are in `literals`.
    """

    def __init__(self) -> None:
        self.word: str | None = None
        self.word_child: TrieNode | None = None
        self.literals: dict[str, TrieNode] | None = None
        self.one_word: TrieNode | None = None
        self.any_words: TrieNode | None = None
        self.destinations: set[object] | None = None
        self.stamp: i64 = 0

    def has_literals(self) -> bool:
        return self.word is not None or self.literals is not None

    def is_empty(self) -> bool:
        """Return whether the node has neither destinations nor children."""
        return (
            self.word is None
            and self.literals is None
            and self.one_word is None
            and self.any_words is None
            and self.destinations is None
        )

    def literal_child(self, word: str) -> TrieNode | None:
        """Return the child for this word of a key."""
        only = self.word
        if only is not None:
            return self.word_child if only == word else None
        literals = self.literals
        return literals.get(word) if literals is not None else None

    def child(self, word: str) -> TrieNode | None:
        """Return the child for this word of a pattern."""
        if word == ONE_WORD:
            return self.one_word
        if word == ANY_WORDS:
            return self.any_words
        return self.literal_child(word)

    def set_child(self, word: str, child: TrieNode) -> None:
        """Add `child` for this word of a pattern. The word must not have a child yet."""
        if word == ONE_WORD:
            self.one_word = child
        elif word == ANY_WORDS:
            self.any_words = child
        elif self.literals is not None:
            self.literals[word] = child
        elif self.word is None or self.word_child is None:
            self.word = word
            self.word_child = child
        else:
            self.literals = {self.word: self.word_child, word: child}
            self.word = None
            self.word_child = None

    def remove_child(self, word: str) -> None:
        """Remove the child for this word of a pattern."""
        if word == ONE_WORD:
            self.one_word = None
        elif word == ANY_WORDS:
            self.any_words = None
        elif self.literals is None:
            self.word = None
            self.word_child = None
        else:
            del self.literals[word]
            if not self.literals:
                self.literals = None

    def node_count(self) -> int:
        """Return the number of nodes below this one. Cost: O(n); recursion to the longest pattern (128 words)."""
        children = list(self.literals.values()) if self.literals is not None else []
        if self.word_child is not None:
            children.append(self.word_child)
        if self.one_word is not None:
            children.append(self.one_word)
        if self.any_words is not None:
            children.append(self.any_words)
        return len(children) + sum([child.node_count() for child in children])


def normalize_pattern(pattern: str) -> list[str]:
    """Return the words of `pattern` in normal form: in a run of wildcards the stars first, then at most one `#`."""
    words: list[str] = []
    if not pattern:  # rabbit: an empty pattern has no words, like an empty key
        return words
    any_words = False
    for word in pattern.split("."):
        if word == ANY_WORDS:
            any_words = True
            continue
        if any_words and word != ONE_WORD:
            words.append(ANY_WORDS)
            any_words = False
        words.append(intern(word))
    if any_words:
        words.append(ANY_WORDS)
    return words


@final
class TopicTrie:
    """Topic patterns -> destinations. Not thread-safe: a match stamps the nodes."""

    def __init__(self) -> None:
        self._table = BindingTable()
        self._plain: dict[str, set[object]] = {}
        self._root = TrieNode()
        self._stamp: i64 = 0

    def add(self, pattern: str, destination: object) -> None:
        """Add a binding. Cost: the words of the pattern."""
        words = normalize_pattern(pattern)
        destinations = self._table.add(".".join(words), destination)
        if ONE_WORD not in words and ANY_WORDS not in words:
            self._plain[pattern] = destinations
            return
        node = self._root
        for word in words:
            child = node.child(word)
            if child is None:
                child = TrieNode()
                node.set_child(word, child)
            node = child
        node.destinations = destinations

    def remove(self, pattern: str, destination: object) -> None:
        """Remove a binding, and branches that have become empty. Cost: the words of the pattern.

        Raises: KeyError if the binding does not exist, which is an error of the caller.
        """
        words = normalize_pattern(pattern)
        if not self._table.remove(".".join(words), destination):
            return
        if ONE_WORD not in words and ANY_WORDS not in words:
            del self._plain[pattern]
            return
        node = self._root
        path = [node]
        for word in words:
            child = node.child(word)
            assert child is not None, "a pattern in the table has its path in the trie"
            path.append(child)
            node = child
        node.destinations = None
        depth = len(words)
        while depth > 0 and path[depth].is_empty():
            depth -= 1
            path[depth].remove_child(words[depth])

    def node_count(self) -> int:
        """Return the number of nodes without the root, which bounds the cost of a match. Cost: O(n)."""
        return self._root.node_count()

    def match(self, key: str) -> set[object]:
        """Return the destinations whose pattern matches `key`, each once. Does not raise.

        The set may be an internal one: do not change it, and drop it at the next add or remove.

        Args:
            key: words between dots, at most 255 bytes.

        Cost: at most trie nodes x words; one look-up if no pattern has wildcards.
        """
        plain = self._plain.get(key) if self._plain else None
        root = self._root
        if root.is_empty():
            return plain if plain is not None else set()
        found: list[set[object]] = []
        if plain is not None:
            found.append(plain)
        self._stamp += 1
        stamp = self._stamp
        met_any_words: list[TrieNode] = []
        any_words = root.any_words
        if any_words is not None:
            if any_words.destinations is not None:
                found.append(any_words.destinations)
            if any_words.has_literals():
                met_any_words.append(any_words)
        reached = [root]
        if key:
            for word in key.split("."):
                following: list[TrieNode] = []
                for node in reached:
                    child = node.literal_child(word)
                    if child is not None:
                        following.append(child)
                    child = node.one_word
                    if child is not None:
                        following.append(child)
                for any_words in met_any_words:
                    child = any_words.literal_child(word)
                    if child is not None:
                        following.append(child)
                for node in following:
                    any_words = node.any_words
                    if any_words is not None and any_words.stamp != stamp:
                        any_words.stamp = stamp
                        # A trailing `#` matches all remaining words: take its destinations now.
                        if any_words.destinations is not None:
                            found.append(any_words.destinations)
                        if any_words.has_literals():
                            met_any_words.append(any_words)
                reached = following
                if not reached and not met_any_words:
                    break
        for node in reached:
            if node.destinations is not None:
                found.append(node.destinations)
        return union(found)


@final
class Topic:
    """The matching structure of a topic exchange."""

    depends_on: ClassVar[int] = ROUTING_KEY

    def __init__(self) -> None:
        self._trie = TopicTrie()

    def validate(self, key: str, arguments: Arguments) -> None:
        """Accept every pattern: matching is cheap for all of them."""

    def bind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Add a binding. Cost: the words of the pattern."""
        self._trie.add(key, destination)

    def unbind(self, key: str, arguments: Arguments, destination: object) -> None:
        self._trie.remove(key, destination)

    def match(self, key: str, headers: Arguments | None) -> set[object]:
        """Return the destinations whose pattern matches `key`; must not be changed. Cost: see `TopicTrie.match`."""
        return self._trie.match(key)
