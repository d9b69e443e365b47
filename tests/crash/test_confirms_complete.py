"""Every publish on a confirm channel gets its one ack, without anybody publishing after it.

Bursts of all sizes to durable queues, from several connections, each awaited before the next one: a confirm that only
comes with the next publish, or never, stops the test. Then publishes to everything there is: several queues, none,
none with `mandatory`, a full queue that refuses, queues that are deleted and made again meanwhile.
"""

from __future__ import annotations

import asyncio
import random
import struct
from pathlib import Path

import pytest
from quickclient import Link, Message, connect, content, publish_prefix, shortstr

from amqpd.testing import BrokerProcess

DURABLE = b"\x10\x00\x02"
PATIENCE_S = 60.0


async def bursts(port: int, number: int, rounds: int) -> None:
    """Publishes and waits, `rounds` times."""
    choose = random.Random(number)
    link = await connect(port)
    queue = f"bursts{number}"
    await link.declare_queue(queue)
    await link.confirm_select()
    confirmed = published = 0
    doubled: list[int] = []
    news = asyncio.Event()

    def confirm(tag: int, multiple: bool, acked: bool) -> None:
        nonlocal confirmed
        assert acked
        if tag <= confirmed or (not multiple and tag != confirmed + 1):
            doubled.append(tag)  # one queue, so acks come in order
        confirmed = tag
        news.set()

    link.on_confirm = confirm
    for each in range(rounds):
        body = b"." * choose.choice([0, 10, 1000, 20_000, 100_000])
        for _ in range(choose.choice([1, 1, 2, 5, 30])):
            link.publish("", queue, DURABLE, body)
            published += 1
            if choose.random() < 0.3:
                await asyncio.sleep(choose.uniform(0.0, 0.004))
        try:
            async with asyncio.timeout(PATIENCE_S):
                while confirmed < published:
                    news.clear()
                    await news.wait()
        except TimeoutError:
            raise AssertionError(
                f"round {each}: confirms up to {confirmed} of {published} after {PATIENCE_S} s"
            ) from None
    assert not doubled, f"confirmed twice or out of order: {doubled[:5]}"
    assert confirmed == published
    link.close()
    await link.gone.wait()


@pytest.mark.slow
async def test_every_publish_is_confirmed(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", settings={"log.level": "error", "storage.segment_size_bytes": 4 << 20})
    try:
        await asyncio.to_thread(broker.start)
        await asyncio.gather(*(bursts(broker.amqp_port, number, 150) for number in range(4)))
    finally:
        await asyncio.to_thread(broker.kill)


REFUSES = shortstr("x-max-length") + b"I" + struct.pack(">i", 3) + shortstr("x-overflow")
REFUSES += b"S" + struct.pack(">I", 14) + b"reject-publish"
PLACES = ("durable", "transient", "everywhere", "nowhere", "nowhere, mandatory", "full", "comes and goes")


class Answers:
    """What a confirm channel said of each publish."""

    def __init__(self, link: Link) -> None:
        self.place: dict[int, str] = {}
        self.acked: dict[int, bool] = {}
        self.returned: set[int] = set()
        self.wrong: list[str] = []
        self.news = asyncio.Event()
        self._lowest = 1
        link.on_confirm, link.on_return = self._confirm, self._return

    def _confirm(self, tag: int, multiple: bool, acked: bool) -> None:
        for number in range(self._lowest, tag + 1) if multiple else [tag]:
            if number not in self.acked:
                self.acked[number] = acked
            elif not multiple:
                self.wrong.append(f"{number} was answered twice")
            if number not in self.place:
                self.wrong.append(f"{number} was answered and never published")
            elif self.place[number] == "nowhere, mandatory" and number not in self.returned:
                self.wrong.append(f"{number} was confirmed before it was returned")
        while self._lowest in self.acked:
            self._lowest += 1
        self.news.set()

    def _return(self, message: Message) -> None:
        number = int(message.body.partition(b";")[0])
        if self.place[number] != "nowhere, mandatory" or number in self.returned:
            self.wrong.append(f"{number} to {self.place[number]} was returned")
        self.returned.add(number)


async def all_kinds(port: int, count: int, seed: int) -> None:
    choose = random.Random(seed)
    link, other = await connect(port), await connect(port)
    for number in range(4):
        await link.declare_queue(f"{seed}.{number}")
        await link.bind(f"{seed}.{number}", "amq.fanout")
    await link.declare_queue(f"{seed}.transient", durable=False)
    await link.declare_queue(f"{seed}.full", table=struct.pack(">I", len(REFUSES)) + REFUSES)
    await link.declare_queue(f"{seed}.moving")
    await link.confirm_select()
    answers = Answers(link)
    where = {
        "durable": publish_prefix("", f"{seed}.0"),
        "transient": publish_prefix("", f"{seed}.transient"),
        "everywhere": publish_prefix("amq.fanout", ""),
        "nowhere": publish_prefix("", f"{seed}.nobody"),
        "nowhere, mandatory": publish_prefix("", f"{seed}.nobody", mandatory=True),
        "full": publish_prefix("", f"{seed}.full"),
        "comes and goes": publish_prefix("", f"{seed}.moving"),
    }
    moving = True
    while len(answers.place) < count:
        for _ in range(choose.choice([1, 1, 10, 60])):
            number = len(answers.place) + 1
            place = answers.place[number] = choose.choice(PLACES)
            body = b"%d;" % number + bytes(choose.choice([0, 100, 20_000]))
            link.write(where[place] + content(choose.choice([DURABLE, b"\x10\x00\x01"]), body))
        if choose.random() < 0.1:
            moving = not moving
            await (other.declare_queue(f"{seed}.moving") if moving else other.delete_queue(f"{seed}.moving"))
        if choose.random() < 0.2:
            await link.writable()
            await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S * 4):
        while len(answers.acked) < len(answers.place):
            answers.news.clear()
            await answers.news.wait()
    await asyncio.sleep(0.1)  # a second answer would come now
    assert not answers.wrong, answers.wrong[:5]
    refused = {answers.place[number] for number, acked in answers.acked.items() if not acked}
    assert refused == {"full"}, f"nacked: {refused}"
    mandatory = {number for number, place in answers.place.items() if place == "nowhere, mandatory"}
    assert answers.returned == mandatory
    for each in (link, other):
        each.close()
        await each.gone.wait()


@pytest.mark.slow
async def test_what_was_nacked_last_in_a_turn_is_not_acked_by_the_next(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    try:
        await asyncio.to_thread(broker.start)
        link = await connect(broker.amqp_port)
        await link.declare_queue("full", table=struct.pack(">I", len(REFUSES)) + REFUSES)
        await link.declare_queue("q")
        await link.confirm_select()
        heard: list[tuple[int, bool, bool]] = []
        link.on_confirm = lambda *answer: heard.append(answer)
        accepted, refused = publish_prefix("", "q") + content(DURABLE, b"x"), publish_prefix("", "full")
        refused += content(DURABLE, b"x")
        link.write(refused * 3)
        async with asyncio.timeout(PATIENCE_S * 4):
            for turn, last in ((accepted + refused, 5), (refused, 6), (refused, 7), (accepted, 8)):
                link.write(turn)
                while not any(tag >= last for tag, _, _ in heard):  # noqa: ASYNC110  # several may come in one turn
                    await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)  # what is answered twice would come now
        single = [tag for tag, multiple, _ in heard if not multiple]
        assert len(single) == len(set(single)), heard
        nacked = [tag for tag, _, acked in heard if not acked]
        assert nacked == [5, 6, 7] and heard[-1][::2] == (8, True), heard
        link.close()
    finally:
        await asyncio.to_thread(broker.kill)


@pytest.mark.slow
async def test_whatever_becomes_of_it_a_publish_is_answered_once(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", settings={"log.level": "error", "storage.segment_size_bytes": 4 << 20})
    try:
        await asyncio.to_thread(broker.start)
        await asyncio.gather(*(all_kinds(broker.amqp_port, 3000, seed) for seed in range(3)))
        assert "Traceback" not in broker.stderr, broker.stderr
    finally:
        await asyncio.to_thread(broker.kill)
