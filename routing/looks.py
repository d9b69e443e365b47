"""What of a message an exchange type looks at, which decides whether its answer may be kept.

The answer of a type that looks at the routing key alone holds for every message with that key, until the next bind or
unbind: publishers keep it. Any other is asked for each message.
"""

from __future__ import annotations

from typing import Final

ROUTING_KEY: Final = 1
HEADERS: Final = 2
PROPERTIES: Final = 4
CHANCE: Final = 8
"""Equal messages may go different ways."""
MEMORY: Final = 16
"""What went before has a say, or it keeps something of what it is asked for."""
