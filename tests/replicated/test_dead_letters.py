"""Dead letters of a slot that changes its owner: none is lost, and all copies except the first are marked."""

from __future__ import annotations

import pytest
from broker_in_memory import Owner
from kafka_in_memory import FakeKafka

ARGUMENTS = {
    "expired": {"x-message-ttl": 300},
    "maxlen": {"x-max-length": 0},
    "rejected": {},
    "delivery_limit": {"x-delivery-limit": 1, "x-queue-type": "quorum"},
}
"""Arguments of a queue whose messages die for the reason."""


def dead_letter_all(owner: Owner, reason: str) -> None:
    """Let all messages of the source die."""
    if reason == "expired":
        owner.advance(1000)
    while reason in ("rejected", "delivery_limit"):
        entry = owner.source.get(False)
        if entry is None:
            break
        if reason == "rejected":
            owner.source.reject(entry)
        else:
            owner.source.requeue(entry, True)
    owner.run()


@pytest.fixture(params=list(ARGUMENTS))
def reason(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def make_kafka(reason: str, **more: object) -> tuple[FakeKafka, dict[int, int], dict[str, object]]:
    return FakeKafka(), dict[int, int](), {**ARGUMENTS[reason], **more}


async def test_clean_give_up_leaves_no_copy(reason: str) -> None:
    """The letters in flight are stored and their sources acked, so that the next owner repeats none."""
    kafka, first_offsets, arguments = await make_kafka(reason)
    owner = await Owner(kafka, first_offsets, arguments).open()
    owner.publish(b"a", b"b")
    dead_letter_all(owner, reason)
    await owner.logs.give_up()
    await owner.logs.close()
    owner = await Owner(kafka, first_offsets, arguments).open()
    assert owner.logs.is_clean_takeover
    dead_letter_all(owner, reason)
    owner.answer_all()
    assert owner.letters() == [(b"a", False), (b"b", False)]


@pytest.mark.parametrize("ahead_s", [-60, 60])
@pytest.mark.parametrize("fenced", [False, True])
async def test_clock_of_the_next_owner_does_not_mark_copies(ahead_s: int, fenced: bool) -> None:
    """A new owner's clock decides when a message expires, but not whether there may be a copy."""
    kafka, first_offsets, arguments = await make_kafka("expired")
    owner = await Owner(kafka, first_offsets, arguments).open()
    owner.publish(b"a")
    if fenced:
        dead_letter_all(owner, "expired")
        owner.producer.store_all()
        owner.logs.fenced("INVALID_PRODUCER_EPOCH")
    else:
        owner.answer_all()
        await owner.logs.give_up()
        await owner.logs.close()
    owner = Owner(kafka, first_offsets, arguments)
    owner.clock.now_ms += ahead_s * 1000
    await owner.open()
    for _ in range(2):
        dead_letter_all(owner, "expired")
    owner.answer_all()
    assert owner.letters() == ([(b"a", False), (b"a", True)] if fenced else [(b"a", False)])
    assert owner.live(0) == []


class TestFencedOwners:
    async def test_stored_letter_without_its_ack_is_repeated_and_marked(self, reason: str) -> None:
        """Two owners in a row are fenced between letter and ack. The copies of the second and the third owner are
        marked.
        """
        kafka, first_offsets, arguments = await make_kafka(reason)
        owner = await Owner(kafka, first_offsets, arguments).open()
        owner.publish(b"a", b"b")
        dead_letter_all(owner, reason)
        owner.producer.store_all()
        owner.logs.fenced("INVALID_PRODUCER_EPOCH")
        assert owner.letters() == [(b"a", False), (b"b", False)]
        for copies in (2, 3):
            owner = await Owner(kafka, first_offsets, arguments).open()
            dead_letter_all(owner, reason)
            owner.producer.store_all()
            owner.logs.fenced("INVALID_PRODUCER_EPOCH")
            marked = [(b"a", True), (b"b", True)] * (copies - 1)
            assert owner.letters() == [(b"a", False), (b"b", False), *marked]

    async def test_stored_letter_and_ack_leave_one_copy(self, reason: str) -> None:
        kafka, first_offsets, arguments = await make_kafka(reason)
        owner = await Owner(kafka, first_offsets, arguments).open()
        owner.publish(b"a", b"b")
        dead_letter_all(owner, reason)
        owner.answer_all()
        owner.logs.fenced("INVALID_PRODUCER_EPOCH")
        owner = await Owner(kafka, first_offsets, arguments).open()
        dead_letter_all(owner, reason)
        owner.answer_all()
        assert owner.letters() == [(b"a", False), (b"b", False)]
        assert owner.live(0) == []

    async def test_message_published_after_the_takeover_is_not_marked(self, reason: str) -> None:
        kafka, first_offsets, arguments = await make_kafka(reason)
        await Owner(kafka, first_offsets, arguments).open()
        owner = await Owner(kafka, first_offsets, arguments).open()
        owner.publish(b"a")
        dead_letter_all(owner, reason)
        owner.answer_all()
        assert owner.letters() == [(b"a", False)]
