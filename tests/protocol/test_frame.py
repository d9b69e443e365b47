"""FrameBoundaryScanner returns whole frames, however the bytes are split, and none after one that is too large."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from amqpd.protocol import methods
from amqpd.protocol.frame import FrameBoundaryScanner


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return bytes([kind]) + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + b"\xce"


FRAMES = st.lists(
    st.builds(frame, st.sampled_from([1, 2, 3, 8]), st.integers(0, 65535), st.binary(max_size=40)), max_size=12
)


@given(FRAMES, st.lists(st.integers(1, 30), min_size=1, max_size=20))
def test_only_whole_frames_pass(frames: list[bytes], sizes: list[int]) -> None:
    ends = {0}
    for each in frames:
        ends.add(max(ends) + len(each))
    stream = b"".join(frames)
    scanner = FrameBoundaryScanner(4096)
    passed, position, turn = b"", 0, 0
    while position < len(stream):
        piece = stream[position : position + sizes[turn % len(sizes)]]
        position += len(piece)
        turn += 1
        passed += scanner.complete_frames(piece)
        assert len(passed) in ends
        assert len(passed) == max(end for end in ends if end <= position)
    assert passed == stream
    assert not scanner.is_broken


def test_connection_close_is_detected() -> None:
    for command in (methods.ConnectionClose(320, "gone"), methods.ConnectionCloseOk()):
        scanner = FrameBoundaryScanner(4096)
        scanner.complete_frames(methods.frame(0, methods.ConnectionOpenOk()) + frame(3, 1, b"\x00\x0a\x00\x32"))
        assert not scanner.saw_close
        scanner.complete_frames(methods.frame(0, command))
        assert scanner.saw_close


def test_a_frame_in_many_pieces_is_joined_once() -> None:
    whole = frame(3, 1, bytes(100_000))
    scanner = FrameBoundaryScanner(131_072)
    for start in range(0, len(whole) - 1, 1000):
        assert scanner.complete_frames(whole[start : min(start + 1000, len(whole) - 1)]) == b""
    assert scanner.complete_frames(whole[-1:]) == whole


def test_no_frame_passes_after_one_that_is_too_large() -> None:
    scanner = FrameBoundaryScanner(4096)
    good = frame(1, 1, b"\0\x0a\0\x0b")
    assert scanner.complete_frames(good + b"\x03\0\x01\x7f\xff\xff\xff") == good
    assert scanner.is_broken
    assert scanner.complete_frames(good) == b""
