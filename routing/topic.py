"""The topic exchange: routing keys are words between dots, bindings are patterns of words.

Source: AMQP 0-9-1, 3.1.3.3; where that is silent, RabbitMQ: see `trie`, which does the work.

Topic patterns in a trie, matched in a time that no pattern can blow up.

A pattern is words between dots: `*` stands for exactly one word, `#` for any number of them, none included; any other
word (`a*` too) stands for itself. An empty word is a word, so `a.*` accepts `a.`; the empty key has no words, so only
`''` and `#` accept it (RabbitMQ).

**Normal form.** A run of wildcards with a `#` in it says "at least n words", however it is written: `#.*.#` is `*.#`.
Patterns are stored with the stars of a run first and one `#` after them. So `#` is followed by a literal or by the end,
never by a wildcard.

**Matching** walks the key once and keeps the set of trie nodes that are reached after each word. A `#`, once reached,
stays reached: a list of the edges behind every `#` met so far is enough to remember it, and a stamp on its node keeps
it from being entered twice. Since a node has one parent, no node is twice in the set, and a match costs at most trie
nodes x words, a few dict look-ups for each. A thousand bindings `#.evtN` share one node and cost one look-up a word.

**Plain patterns** are not in the trie at all: they are a look-up of the whole key in a table of their own.

**Main memory is what a match waits for** when there are thousands of bindings. So a word of a pattern is one object
wherever it stands, and a node with a single literal behind it has no dict.

Invariants: a node but the root has a destination or a child; `destinations` of a node, and of a plain pattern, is the
binding table's own set.
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
    """What is reached after some words of a pattern.

    Of the literals behind it a single one stands in `word` and `word_child`, several in `literals`.
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
        """Neither destination nor child."""
        return (
            self.word is None
            and self.literals is None
            and self.one_word is None
            and self.any_words is None
            and self.destinations is None
        )

    def literal_child(self, word: str) -> TrieNode | None:
        """The node behind this word of a key."""
        only = self.word
        if only is not None:
            return self.word_child if only == word else None
        literals = self.literals
        return literals.get(word) if literals is not None else None

    def child(self, word: str) -> TrieNode | None:
        """The node behind this word of a pattern."""
        if word == ONE_WORD:
            return self.one_word
        if word == ANY_WORDS:
            return self.any_words
        return self.literal_child(word)

    def set_child(self, word: str, child: TrieNode) -> None:
        """Puts `child` behind this word of a pattern, where there is none."""
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
        """Takes the node behind this word away."""
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
        """Nodes below this one. Cost: as many; recursion as deep as the longest pattern (128 words)."""
        children = list(self.literals.values()) if self.literals is not None else []
        if self.word_child is not None:
            children.append(self.word_child)
        if self.one_word is not None:
            children.append(self.one_word)
        if self.any_words is not None:
            children.append(self.any_words)
        return len(children) + sum([child.node_count() for child in children])


def normalize_pattern(pattern: str) -> list[str]:
    """The words of `pattern`; in each run of wildcards the stars come first, and one `#` stands for all."""
    words: list[str] = []
    if not pattern:  # rabbit: an empty pattern has no words, as has an empty key
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
    """Topic patterns -> destinations. Not for two threads at once: a match leaves stamps on the nodes."""

    def __init__(self) -> None:
        self._table = BindingTable()
        self._plain: dict[str, set[object]] = {}
        self._root = TrieNode()
        self._stamp: i64 = 0

    def add(self, pattern: str, destination: object) -> None:
        """One more binding. Cost: the words of the pattern."""
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
        """One binding less; branches that lead nowhere any more go with it. Cost: the words of the pattern.

        Raises: KeyError if there is no such binding, which is an error of the caller.
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
        """Nodes in use, the root apart: what bounds the cost of a match. Cost: as many."""
        return self._root.node_count()

    def match(self, key: str) -> set[object]:
        """Destinations with a pattern that accepts `key`, each once.

        key: dot-separated words, at most 255 bytes. Cost: at most trie nodes x words; without wildcards one look-up.
        Raises: nothing. The set may be the trie's own, not to be changed, and good until the next add or remove.
        Spec: AMQP 0-9-1 3.1.3.3; rabbit: an empty word is a word, an empty key has none.
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
                        # A trailing `#` accepts whatever is left, so it is answered here and not followed.
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
    """Matching structure of one topic exchange."""

    depends_on: ClassVar[int] = ROUTING_KEY

    def __init__(self) -> None:
        self._trie = TopicTrie()

    def validate(self, key: str, arguments: Arguments) -> None:
        """Every key is a good pattern: matching is cheap whatever it says."""

    def bind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Cost: the words of the pattern."""
        self._trie.add(key, destination)

    def unbind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Cost: the words of the pattern."""
        self._trie.remove(key, destination)

    def match(self, key: str, headers: Arguments | None) -> set[object]:
        """Destinations with a pattern that accepts `key`; not to be changed. Cost: see `Trie.match`."""
        return self._trie.match(key)
