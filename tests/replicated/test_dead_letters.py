"""Dead letters of a slot that changes hands: none is lost, and of several copies all but the first say so."""

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
"""Of a queue whose messages die for this reason."""


def kill(owner: Owner, reason: str) -> None:
    """All that is in the source dies."""
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


async def owners(reason: str, **more: object) -> tuple[FakeKafka, dict[int, int], dict[str, object]]:
    return FakeKafka(), dict[int, int](), {**ARGUMENTS[reason], **more}


async def test_given_up_cleanly(reason: str) -> None:
    """What was on its way is stored and settled: the next owner repeats none."""
    kafka, first, arguments = await owners(reason)
    owner = await Owner(kafka, first, arguments).open()
    owner.publish(b"a", b"b")
    kill(owner, reason)
    await owner.logs.give_up()
    await owner.logs.close()
    owner = await Owner(kafka, first, arguments).open()
    assert owner.logs.is_clean_takeover
    kill(owner, reason)
    owner.answer()
    assert owner.letters() == [(b"a", False), (b"b", False)]


@pytest.mark.parametrize("ahead_s", [-60, 60])
@pytest.mark.parametrize("fenced", [False, True])
async def test_clocks_that_are_apart(ahead_s: int, fenced: bool) -> None:
    """A new owner's clock says when a message is over, and has no part in whether there may be a copy."""
    kafka, first, arguments = await owners("expired")
    owner = await Owner(kafka, first, arguments).open()
    owner.publish(b"a")
    if fenced:
        kill(owner, "expired")
        owner.producer.store_all()
        owner.logs.fenced("INVALID_PRODUCER_EPOCH")
    else:
        owner.answer()
        await owner.logs.give_up()
        await owner.logs.close()
    owner = Owner(kafka, first, arguments)
    owner.clock.now_ms += ahead_s * 1000
    await owner.open()
    for _ in range(2):
        kill(owner, "expired")
    owner.answer()
    assert owner.letters() == ([(b"a", False), (b"a", True)] if fenced else [(b"a", False)])
    assert owner.live(0) == []


class TestOwnersThatAreFenced:
    async def test_the_letter_was_stored_and_its_settlement_was_not(self, reason: str) -> None:
        """Two owners after each other are fenced between the two: the third one's copy says so, as the second's."""
        kafka, first, arguments = await owners(reason)
        owner = await Owner(kafka, first, arguments).open()
        owner.publish(b"a", b"b")
        kill(owner, reason)
        owner.producer.store_all()
        owner.logs.fenced("INVALID_PRODUCER_EPOCH")
        assert owner.letters() == [(b"a", False), (b"b", False)]
        for copies in (2, 3):
            owner = await Owner(kafka, first, arguments).open()
            kill(owner, reason)
            owner.producer.store_all()
            owner.logs.fenced("INVALID_PRODUCER_EPOCH")
            marked = [(b"a", True), (b"b", True)] * (copies - 1)
            assert owner.letters() == [(b"a", False), (b"b", False), *marked]

    async def test_all_of_it_was_stored(self, reason: str) -> None:
        """Then there is one copy."""
        kafka, first, arguments = await owners(reason)
        owner = await Owner(kafka, first, arguments).open()
        owner.publish(b"a", b"b")
        kill(owner, reason)
        owner.answer()
        owner.logs.fenced("INVALID_PRODUCER_EPOCH")
        owner = await Owner(kafka, first, arguments).open()
        kill(owner, reason)
        owner.answer()
        assert owner.letters() == [(b"a", False), (b"b", False)]
        assert owner.live(0) == []

    async def test_what_comes_later_has_no_copy(self, reason: str) -> None:
        kafka, first, arguments = await owners(reason)
        await Owner(kafka, first, arguments).open()
        owner = await Owner(kafka, first, arguments).open()
        owner.publish(b"a")
        kill(owner, reason)
        owner.answer()
        assert owner.letters() == [(b"a", False)]
