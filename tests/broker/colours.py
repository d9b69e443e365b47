"""Messages with a header `colour`, for tests of consumer filters."""

from __future__ import annotations

RED = "colour = 'red'"
BLUE = "colour = 'blue'"


def publish(room, colours: str, start: int = 0, **properties: object) -> None:
    """Publish one message per letter of `colours`: r (red), b (blue) or g (green)."""
    names = {"r": "red", "b": "blue", "g": "green"}
    for number, letter in enumerate(colours, start):
        room.publish("q", b"%s%d" % (letter.encode(), number), headers={"colour": names[letter]}, **properties)


def texts(bodies: list[bytes]) -> str:
    return " ".join(body.decode() for body in bodies)
