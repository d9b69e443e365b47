"""RabbitMQ's own configuration file, `rabbitmq.conf`, read as it is: sysctl format, and what becomes of each key.

Format, as RabbitMQ's parser (cuttlefish) has it:
    key = value            words of the key joined by dots, `\\.` is a dot in a word; of two equal keys the last counts
    key = 'a # b'          in single quotes anything but one of them (RabbitMQ 3.12 and newer)
    # comment              also behind a value
    include conf/*.conf    relative to the file it stands in; what it says stands where the line stands
    key = $(NAME)          anywhere in a value: from the environment (RabbitMQ 4.0 and newer)
Behind the main file come `conf.d/*.conf` beside it, or those of RABBITMQ_CONFIG_FILES, in the order of their names.

The keys are the rows of `rabbitmq_keys`. One that amqpd can do nothing with, but that changes no meaning, is a note;
one whose absence would (a login backend, TLS that is not there) is refused, as is a key RabbitMQ does not know either.

Imported only where such a file is named: `--config` or AMQPD_CONFIG that ends in `.conf`, RABBITMQ_CONFIG_FILE.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from amqpd.config.rabbitmq_keys import ROWS, matching
from amqpd.config.rabbitmq_plugins import PROMETHEUS
from amqpd.config.rabbitmq_translation import Translation

DEPTH_MAX: Final = 16
_KEY: Final = r"(?P<key>(?:\\\.|[A-Za-z0-9_-])+(?:\.(?:\\\.|[A-Za-z0-9_-])+)*)"
_VALUE: Final = r"(?:'(?P<quoted>[^']*)'|(?P<plain>[^#]*?))"
_SETTING: Final = re.compile(rf"[ \t]*{_KEY}[ \t]*=[ \t]*{_VALUE}[ \t]*(?:#.*)?")
_INCLUDE: Final = re.compile(r"[ \t]*include[ \t]+(?P<path>[A-Za-z0-9_.*/-]+)[ \t]*(?:#.*)?")
_BLANK: Final = re.compile(r"[ \t]*(?:#.*)?")
_VARIABLE: Final = re.compile(r"\$\((?P<name>[A-Za-z_][A-Za-z0-9_]*)\)")


class Given(NamedTuple):
    """A key as it stood in a file. words: of the key; place: `FILE:LINE`."""

    words: tuple[str, ...]
    value: str
    place: str


class Found(NamedTuple):
    """What the files add up to.

    values: setting's name -> value, as another source would give it; sources: setting's name -> `FILE:LINE: KEY`.
    notes: a line for each key that changes nothing; problems: a line for each that cannot be obeyed.
    """

    values: dict[str, object]
    sources: dict[str, str]
    notes: list[str]
    problems: list[str]


def read(
    main: Path | None, more: Sequence[Path], environ: Mapping[str, str], plugins: Mapping[str, str] | None = None
) -> Found:
    """The files, in this order, as settings. plugins: enabled -> where that is said.

    Cost: some 30 us a line. Raises: nothing, see `problems`."""
    problems: list[str] = []
    given: dict[tuple[str, ...], Given] = {}
    for path in [*([main] if main else []), *more]:
        _read_file(path, given, problems, environ, 0)
    translation = Translation()
    for one in given.values():
        _translate(one, translation)
    if plugins and PROMETHEUS in plugins:
        translation.metrics((), "", plugins[PROMETHEUS].removeprefix("file "))
    translation.finish()
    return Found(translation.values, translation.sources, translation.notes, problems + translation.problems)


def _read_file(
    path: Path, given: dict[tuple[str, ...], Given], problems: list[str], environ: Mapping[str, str], depth: int
) -> None:
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        problems.append(f"{path}: {error.strerror}")
        return
    except UnicodeDecodeError as error:
        problems.append(f"{path}: not UTF-8: {error}")
        return
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        place = f"{path}:{number}"
        if _BLANK.fullmatch(line):
            continue
        if (found := _SETTING.fullmatch(line)) and (found["quoted"] is not None or found["plain"]):
            words = tuple(word.replace("\0", ".") for word in found["key"].replace("\\.", "\0").split("."))
            value = found["quoted"] if found["quoted"] is not None else found["plain"]
            given.pop(words, None)  # the last counts, and where it stands
            given[words] = Given(words, _filled_in(value, place, problems, environ), place)
        elif found := _INCLUDE.fullmatch(line):
            _include(path.parent, found["path"], place, given, problems, environ, depth)
        elif found := re.match(rf"[ \t]*{_KEY}[ \t]*=", line):
            problems.append(f"{place}: {found['key']} has no value, or one whose quote does not end")
        elif line.lstrip().startswith(("[", "{", "]", "}", "%")):
            problems.append(f"{place}: this is Erlang's format of before 3.7, not `key = value`; write the keys anew")
            return
        else:
            # Its first word alone: what follows may be a password.
            word = re.split(r"[\s:=]", line.strip())[0]
            problems.append(f"{place}: not `key = value`: {word[:60]!r} ...")


def _include(
    folder: Path,
    named: str,
    place: str,
    given: dict[tuple[str, ...], Given],
    problems: list[str],
    environ: Mapping[str, str],
    depth: int,
) -> None:
    if depth >= DEPTH_MAX:
        problems.append(f"{place}: {DEPTH_MAX} files include each other")
        return
    path = folder / named
    try:
        files = sorted(path.parent.glob(path.name)) if "*" in path.name else [path]
    except ValueError as error:  # ** within a name
        problems.append(f"{place}: include {named}: {error}")
        return
    for each in files:
        _read_file(each, given, problems, environ, depth + 1)


def _filled_in(value: str, place: str, problems: list[str], environ: Mapping[str, str]) -> str:
    """With the variables in it."""

    def variable(found: re.Match[str]) -> str:
        if found["name"] not in environ:
            problems.append(f"{place}: there is no variable {found['name']} in the environment")
        return environ.get(found["name"], "")

    return _VARIABLE.sub(variable, value)


def _translate(one: Given, translation: Translation) -> None:
    key = ".".join(word.replace(".", "\\.") for word in one.words)
    row = matching(one.words)
    if row is None:
        from difflib import get_close_matches

        near = get_close_matches(key, [each.pattern for each in ROWS], 1, 0.75)
        guess = f"; did you mean {near[0]}?" if near else ""
        translation.problems.append(f"{one.place}: RabbitMQ has no key {key}{guess}")
        return
    if one.value.startswith("encrypted:"):
        text = f"{key} is encrypted, which amqpd cannot read: amqpctl decode says what it is; use $(VARIABLE)"
        translation.problems.append(f"{one.place}: {text}")
        return
    try:
        row.take(translation, one.words, one.value, f"{one.place}: {key}")
    except ValueError as error:
        translation.problems.append(f"{one.place}: {key} {error}")
