"""What a selector that has found nothing may have meant: a property, or a header whose name is no word."""

from __future__ import annotations

import re
from typing import Final

from amqpd.routing.selector_fields import PROPERTIES

_QUOTED: Final = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*\"""")
_PROPERTY: Final = re.compile(
    rf"(?<![\w.\[-])({'|'.join(name.replace('-', '[-_]') for name in PROPERTIES)})(?![\w.-])"
)
_DIFFERENCE: Final = re.compile(r"(?<![\w.\[-])x(?:-\w+)+")


def hint(text: str) -> str:
    """What stands there without `p.` and is called as a property is, and what is a difference and looks like a name;
    "": nothing does.

    text: of a selector that `parse` takes.
    """
    bare = _QUOTED.sub("''", text)
    meant = [f"p.{name.replace('_', '-')} is the property, {name} a header" for name in _PROPERTY.findall(bare)]
    meant += [f"[{name}] is the header, {name} a difference" for name in _DIFFERENCE.findall(bare)]
    return "; ".join(dict.fromkeys(meant))
