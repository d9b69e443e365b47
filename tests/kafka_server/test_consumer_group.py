"""The state machine of a group of the consumer protocol, driven without a broker, also at random."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from amqpd.auth.internal_backend import User
from amqpd.kafka_server import consumer_group
from amqpd.kafka_server.assignors import Partitions, Topics, partitions_of
from amqpd.kafka_server.consumer_group import (
    COST_PER_MS,
    EPOCH_MAX,
    HEARTBEAT_MS,
    PARTITION_BYTES,
    PATTERNS_MAX,
    SESSION_TIMEOUT_MS,
    ConsumerProtocolGroup,
    GroupPhase,
    HeartbeatAnswer,
    MemberHeartbeat,
    MemberState,
    Subscription,
)
from amqpd.kafka_server.groups import GROUP_BYTES_MAX, MEMBERS_MAX, NEVER

USER = User("guest")
REBALANCE_MS = 10_000


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b"\0")


class Table:
    """Topics by name, with their partitions. A pattern matches the beginning of a name."""

    def __init__(self, **counts: int) -> None:
        self.counts = counts
        self.version = 0
        self.resolved = 0

    @property
    def count(self) -> int:
        return len(self.counts)

    def set(self, name: str, count: int) -> None:
        self.counts.pop(name, None)
        if count:
            self.counts[name] = count
        self.version += 1

    def resolve(self, subscription: Subscription) -> Topics:
        self.resolved += 1
        pattern = subscription.pattern
        return {
            topic_id(name): count
            for name, count in self.counts.items()
            if name in subscription.names or (pattern and name.startswith(pattern))
        }


class Member:
    """A client: it owns what answers give it, and gives back what they do not name."""

    def __init__(self, driver: Driver, member_id: str, instance: str | None = None) -> None:
        self.driver = driver
        self.id = member_id
        self.instance = instance
        self.epoch = 0
        self.owned: Partitions = frozenset()
        self.assignment: Partitions = frozenset()

    def send(self, epoch: int, **fields: Any) -> HeartbeatAnswer:
        """Send a heartbeat with these fields and return the answer."""
        values: dict[str, Any] = {
            "instance_id": self.instance,
            "rack_id": None,
            "rebalance_timeout_ms": -1,
            "names": None,
            "pattern": None,
            "assignor": None,
            "owned": None,
            "client_id": "client",
            "host": "127.0.0.1",
            "user": USER,
        }
        heartbeat = MemberHeartbeat("g", self.id, epoch, **(values | fields))
        return self.driver.group.heartbeat(heartbeat, self.driver.topics, self.driver.now)

    def apply(self, answer: HeartbeatAnswer) -> HeartbeatAnswer:
        if answer.error == 0:
            self.epoch = answer.epoch
            if answer.assignment is not None:
                self.assignment = answer.assignment
                if self.owned <= self.assignment:
                    self.owned = self.assignment
        elif answer.error in (25, 110):
            self.epoch = 0
            self.owned = self.assignment = frozenset()
        return answer

    def join(self, *names: str, **fields: Any) -> HeartbeatAnswer:
        self.owned = self.assignment = frozenset()
        values = {"names": frozenset(names), "rebalance_timeout_ms": REBALANCE_MS, "owned": frozenset()}
        return self.apply(self.send(0, **(values | fields)))

    def beat(self, **fields: Any) -> HeartbeatAnswer:
        """Send a heartbeat with the partitions that the client has."""
        return self.apply(self.send(self.epoch, **({"owned": self.owned} | fields)))

    def revoke(self) -> None:
        self.owned &= self.assignment

    def leave(self, epoch: int = -1) -> HeartbeatAnswer:
        answer = self.send(epoch)
        self.epoch = 0
        self.owned = self.assignment = frozenset()
        return answer


class Driver:
    """A group with a clock."""

    def __init__(self, **counts: int) -> None:
        self.now = 1000
        self.topics = Table(**counts)
        self.group = ConsumerProtocolGroup("g", self.now)

    def member(self, *names: str, instance: str | None = None, **fields: Any) -> Member:
        """Return a member that has joined."""
        member = Member(self, f"m{len(self.group.members)}", instance)
        assert member.join(*names, **fields).error == 0
        return member

    def wait(self, ms: int) -> None:
        self.now += ms
        if self.group.due_ms <= self.now:
            self.group.on_time(self.now)

    def settle(self, members: Iterable[Member]) -> int:
        """Let all members send heartbeats until the group is stable. Return how many rounds it took."""
        members = list(members)
        for rounds in range(4 * len(members) + 6):
            if self.group.phase is GroupPhase.STABLE and self.group.target_epoch == self.group.epoch and rounds:
                return rounds
            self.wait(HEARTBEAT_MS)
            for member in members:
                member.beat()
                member.revoke()
        raise AssertionError(self.group.phase)


def test_first_member_gets_all_partitions_at_once() -> None:
    driver = Driver(a=3, b=1, c=5)
    member = driver.member("a", "b", "absent")
    assert member.owned == partitions_of({topic_id("a"): 3, topic_id("b"): 1})
    assert member.epoch == driver.group.epoch == 1
    assert driver.group.phase is GroupPhase.STABLE


def test_second_member_waits_until_the_first_has_given_partitions_back() -> None:
    driver = Driver(a=4)
    first = driver.member("a")
    second = driver.member("a")
    assert second.owned == frozenset() and second.epoch == 2
    assert driver.group.phase is GroupPhase.RECONCILING
    answer = first.beat()
    assert answer.epoch == 1 and answer.assignment is not None and len(answer.assignment) == 2
    assert first.beat().assignment is None  # not revoked yet
    assert second.beat().assignment is None
    first.revoke()
    assert first.beat().epoch == 2
    assert second.beat().assignment == second.owned and len(second.owned) == 2
    assert not first.owned & second.owned
    assert driver.group.phase is GroupPhase.STABLE


def test_heartbeat_without_partitions_does_not_confirm_that_they_were_given_back() -> None:
    driver = Driver(a=2)
    first = driver.member("a")
    driver.member("a")
    first.beat()
    assert first.send(first.epoch).epoch == 1
    assert driver.group.members[first.id].state is MemberState.UNREVOKED


def test_member_that_leaves_frees_its_partitions() -> None:
    driver = Driver(a=4)
    first = driver.member("a")
    second = driver.member("a")
    driver.settle([first, second])
    answer = first.leave()
    assert (answer.error, answer.epoch, answer.member_id) == (0, -1, first.id)
    second.beat()
    assert len(second.owned) == 4
    assert first.leave().error == 25
    second.leave()
    assert driver.group.is_unused and driver.group.phase is GroupPhase.EMPTY and driver.group.size_bytes == 0


def test_member_without_heartbeats_is_removed_after_the_session_timeout() -> None:
    driver = Driver(a=4)
    first = driver.member("a")
    second = driver.member("a")
    driver.settle([first, second])
    driver.wait(SESSION_TIMEOUT_MS - 1)
    second.beat()
    driver.wait(1)
    assert list(driver.group.members) == [second.id]
    assert first.beat().error == 25
    second.beat()
    assert len(second.owned) == 4
    assert driver.group.due_ms == driver.now + SESSION_TIMEOUT_MS - 1


def test_member_that_does_not_give_back_partitions_is_removed_after_its_rebalance_timeout() -> None:
    driver = Driver(a=2)
    first = driver.member("a")
    second = driver.member("a")
    first.beat()
    driver.wait(REBALANCE_MS - 1)
    assert first.beat().error == 0
    driver.wait(1)
    assert first.beat().error == 25
    second.beat()
    assert len(second.owned) == 2


def test_lost_answer_is_repeated_and_other_old_epochs_are_fenced() -> None:
    driver = Driver(a=2)
    first = driver.member("a")
    second = driver.member("a")
    driver.settle([first, second])
    second.leave()
    first.send(first.epoch, owned=first.owned)  # the answer is lost
    answer = first.beat()
    assert answer.error == 0 and answer.epoch == 3 and answer.assignment is not None and len(answer.assignment) == 2
    assert first.send(2, owned=frozenset()).error == 0  # it may own less, but not more, and must say what
    assert first.send(2).error == 110
    assert first.send(2, owned=frozenset({(topic_id("x"), 0)})).error == 110
    assert first.send(1, owned=frozenset()).error == 110
    assert first.send(4, owned=frozenset()).error == 110


def test_fenced_member_joins_again_with_its_id() -> None:
    driver = Driver(a=2)
    first = driver.member("a")
    assert first.send(7).error == 110
    answer = first.join("a")
    assert answer.error == 0 and answer.epoch == 1 and len(first.owned) == 2
    assert driver.group.epoch == 1


def test_static_member_that_is_away_keeps_its_target_for_its_successor() -> None:
    driver = Driver(a=4)
    first = driver.member("a", instance="one")
    second = driver.member("a", instance="two")
    driver.settle([first, second])
    owned = first.owned
    answer = first.leave(-2)
    assert (answer.error, answer.epoch) == (0, -2)
    assert driver.group.commit_error(first.id, -2, driver.now) == 113
    assert second.beat().assignment is None
    assert driver.group.phase is GroupPhase.STABLE
    successor = Member(driver, "new", "one")
    assert successor.join("a").epoch == second.epoch
    assert successor.owned == owned
    assert driver.group.epoch == 2  # no rebalance
    assert first.send(2).error == 82
    assert first.leave(-1).error == 82


def test_static_member_that_stays_away_is_removed_with_its_session() -> None:
    driver = Driver(a=4)
    first = driver.member("a", instance="one")
    first.leave(-2)
    driver.wait(SESSION_TIMEOUT_MS)
    assert driver.group.is_unused
    assert first.send(1).error == 25


def test_instance_id_in_use_is_refused() -> None:
    driver = Driver(a=4)
    first = driver.member("a", instance="one")
    other = Member(driver, "other", "one")
    assert other.join("a").error == 111
    assert first.join("a").error == 0  # the same process joins again
    first.leave(-1)
    assert other.join("a").error == 0
    other.instance = "two"
    assert other.join("a").error == 82
    other.instance = None
    assert other.join("a").error == 82


def test_dynamic_member_cannot_leave_for_a_short_time() -> None:
    driver = Driver(a=4)
    assert driver.member("a").leave(-2).error == 42


def test_incomplete_join_is_refused() -> None:
    driver = Driver(a=4)
    member = Member(driver, "m")
    assert member.join("a", names=None).error == 42
    assert member.join("a", owned=None).error == 42
    assert member.join("a", owned=frozenset({(topic_id("a"), 0)})).error == 42
    assert member.join("a", rebalance_timeout_ms=-1).error == 42
    assert member.join("a", assignor="sticky").error == 112
    assert member.beat().error == 42
    assert member.send(3).error == 25
    assert driver.group.is_unused and driver.group.epoch == 0


def test_changed_topics_raise_the_epoch_with_the_next_heartbeat() -> None:
    driver = Driver(a=1, ab=2)
    member = driver.member(pattern="a")
    assert len(member.owned) == 3
    driver.topics.set("other", 5)
    driver.wait(1000)
    assert member.beat().epoch == 1
    driver.topics.set("abc", 4)
    assert member.beat().epoch == 2 and len(member.owned) == 7
    driver.topics.set("ab", 3)
    driver.wait(1000)
    assert member.beat().epoch == 3 and len(member.owned) == 8
    driver.topics.set("abc", 0)
    driver.wait(1000)
    assert member.beat().epoch == 3
    member.revoke()
    assert member.beat().epoch == 4
    assert member.owned == partitions_of({topic_id("a"): 1, topic_id("ab"): 3})


def test_steady_heartbeat_looks_at_no_topic_and_computes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(a=8)
    members = [driver.member("a"), driver.member("a")]
    driver.settle(members)
    driver.topics.resolved = 0
    monkeypatch.setattr(consumer_group, "ASSIGNORS", {})
    for member in members:
        driver.wait(HEARTBEAT_MS)
        assert member.send(member.epoch).assignment is None
    assert driver.topics.resolved == 0


def test_changed_subscription_and_assignor_raise_the_epoch_and_equal_ones_do_not() -> None:
    driver = Driver(a=4, b=4)
    member = driver.member("a")
    assert member.beat(names=frozenset({"a"})).epoch == 1
    assert member.beat(names=frozenset({"a", "b"})).epoch == 2
    assert len(member.owned) == 8
    assert member.beat(assignor="range").epoch == 3
    assert driver.group.assignor == "range"
    assert member.beat(assignor="range").epoch == 3
    assert member.beat(pattern="b", names=frozenset()).epoch == 3
    member.revoke()
    assert member.beat().epoch == 4 and len(member.owned) == 4
    assert member.beat(names=frozenset({"a"}), pattern="").epoch == 4
    member.revoke()
    assert member.beat().epoch == 5
    assert member.owned == partitions_of({topic_id("a"): 4})


def test_most_wanted_assignor_is_used() -> None:
    driver = Driver(a=4)
    driver.member("a", assignor="range")
    driver.member("a", assignor="uniform")
    assert driver.group.assignor == "range"  # the first by name of two
    driver.member("a", assignor="uniform")
    assert driver.group.assignor == "uniform"


def test_full_heartbeat_is_answered_with_the_assignment() -> None:
    driver = Driver(a=4)
    member = driver.member("a")
    answer = member.beat(names=frozenset({"a"}), rebalance_timeout_ms=REBALANCE_MS)
    assert answer.assignment == member.owned
    assert member.beat().assignment is None


def test_commits_and_fetches_need_the_epoch_of_the_member() -> None:
    driver = Driver(a=4)
    group = driver.group
    assert group.commit_error("", -1, driver.now) == 0
    member = driver.member("a")
    assert group.commit_error(member.id, 1, driver.now) == 0
    assert group.commit_error(member.id, 0, driver.now) == 113
    assert group.commit_error("other", 1, driver.now) == 25
    assert group.commit_error("", -1, driver.now) == 25
    assert group.fetch_error(None, -1) == 0
    assert group.fetch_error(member.id, 1) == 0
    assert group.fetch_error(member.id, 2) == 113
    assert group.fetch_error("", -1) == 25


def test_subscribed_topics_are_known() -> None:
    driver = Driver(a=4, b=1)
    member = driver.member("a")
    assert driver.group.is_subscribed(topic_id("a"))
    assert not driver.group.is_subscribed(topic_id("b"))
    member.leave()
    assert not driver.group.is_subscribed(topic_id("a"))


def test_large_group_computes_its_target_rarely() -> None:
    driver = Driver(a=100 * COST_PER_MS)
    first = driver.member("a")
    driver.settle([first])
    second = driver.member("a")  # the first computation was long enough ago
    driver.wait(REBALANCE_MS // 2)
    third = driver.member("a")
    driver.settle([first, second, third])
    epoch = driver.group.target_epoch
    fourth = driver.member("a")
    assert driver.group.target_epoch == epoch + 1
    fifth = driver.member("a")
    assert driver.group.target_epoch == epoch + 1 and fifth.epoch == epoch + 1 and not fifth.owned
    assert driver.group.phase is GroupPhase.ASSIGNING
    driver.settle([first, second, third, fourth, fifth])
    assert {len(each.owned) for each in (first, second, third, fourth, fifth)} == {20 * COST_PER_MS}


def test_members_subscriptions_and_patterns_are_limited() -> None:
    driver = Driver(a=4)
    large = frozenset(f"{number:0200}" for number in range(GROUP_BYTES_MAX // 320))
    first = driver.member(*large)
    driver.member(*large)  # equal subscriptions are counted once
    assert first.beat(names=frozenset({*large, "a"})).error == 44
    first.beat(names=frozenset({"a"}))
    for number in range(PATTERNS_MAX):
        driver.member(pattern=f"x{number}")
    assert Member(driver, "one more").join(pattern="y").error == 44
    assert Member(driver, "another").join(pattern="x0").error == 0
    while len(driver.group.members) < MEMBERS_MAX:
        driver.member("a")
    assert Member(driver, "the last").join("a").error == 81
    assert driver.group.interval_ms == 5 * MEMBERS_MAX


def test_group_that_has_used_all_epochs_begins_again() -> None:
    driver = Driver(a=4)
    member = driver.member("a")
    driver.group.epoch = EPOCH_MAX
    assert member.beat().error == 25
    assert member.join("a").epoch == 1


def test_deleted_group_is_dead() -> None:
    driver = Driver(a=4)
    driver.member("a")
    driver.group.kill()
    assert driver.group.phase is GroupPhase.DEAD and driver.group.is_unused and driver.group.due_ms == NEVER


NAMES = ["a", "b", "bc", "d"]


class RandomConsumerGroup(RuleBasedStateMachine):
    """Members that join, revoke late, lose answers, leave, die and come back, while topics change."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(a=5, b=3)
        self.members: list[Member] = []
        self.count = 0

    def pick(self, number: int) -> Member | None:
        return self.members[number % len(self.members)] if self.members else None

    @rule(
        names=st.sets(st.sampled_from(NAMES)),
        pattern=st.sampled_from(["", "", "b"]),
        instance=st.sampled_from([None, None, "one", "two"]),
        assignor=st.sampled_from([None, "range", "uniform"]),
    )
    def join(self, names: set[str], pattern: str, instance: str | None, assignor: str | None) -> None:
        self.count += 1
        member = Member(self.driver, f"m{self.count}", instance)
        answer = member.join(*names, pattern=pattern, assignor=assignor)
        assert answer.error in (0, 111)
        if answer.error == 0:
            self.members = [each for each in self.members if instance is None or each.instance != instance]
            self.members.append(member)

    @rule(number=st.integers(0, 9), names=st.sets(st.sampled_from(NAMES)))
    def rejoin(self, number: int, names: set[str]) -> None:
        member = self.pick(number)
        if member is not None:
            assert member.join(*names).error == 0

    @rule(number=st.integers(0, 9), is_lost=st.booleans(), is_short=st.booleans())
    def beat(self, number: int, is_lost: bool, is_short: bool) -> None:
        member = self.pick(number)
        if member is None or member.epoch == 0:
            return
        if is_lost:
            member.send(member.epoch, owned=member.owned)
        else:
            answer = member.beat(owned=None) if is_short else member.beat()
            assert answer.error in (0, 25, 110)

    @rule(number=st.integers(0, 9), names=st.sets(st.sampled_from(NAMES)))
    def subscribe(self, number: int, names: set[str]) -> None:
        member = self.pick(number)
        if member is not None and member.epoch:
            member.beat(names=frozenset(names))

    @rule(number=st.integers(0, 9))
    def revoke(self, number: int) -> None:
        member = self.pick(number)
        if member is not None:
            member.revoke()

    @rule(number=st.integers(0, 9), epoch=st.sampled_from([-1, -2]), is_told=st.booleans())
    def leave(self, number: int, epoch: int, is_told: bool) -> None:
        member = self.pick(number)
        if member is None:
            return
        if epoch == -2 and member.instance is not None:
            member.leave(epoch)
        elif is_told:
            member.leave()
        self.members.remove(member)

    @rule(name=st.sampled_from(NAMES), count=st.integers(0, 7))
    def change_topic(self, name: str, count: int) -> None:
        self.driver.topics.set(name, count)

    @rule(ms=st.sampled_from([1, HEARTBEAT_MS, REBALANCE_MS, SESSION_TIMEOUT_MS // 2, SESSION_TIMEOUT_MS]))
    def wait(self, ms: int) -> None:
        self.driver.wait(ms)
        for member in self.members:
            if member.id not in self.driver.group.members:
                member.epoch = 0
                member.owned = member.assignment = frozenset()

    @rule()
    def come_to_rest(self) -> None:
        """After enough heartbeats all partitions are assigned once, and equal subscriptions get equal numbers."""
        self.wait(SESSION_TIMEOUT_MS)
        for member in self.members:
            if member.id not in self.driver.group.members:
                member.join("a", "b")
        group = self.driver.group
        if not self.members:
            return
        self.driver.settle(self.members)
        assert set(group.members) == {each.id for each in self.members}
        resolved = {id(each): self.driver.topics.resolve(each.subscription) for each in group.members.values()}
        owned = [each for member in self.members for each in member.owned]
        assert len(owned) == len(set(owned))
        assert set(owned) == {each for topics in resolved.values() for each in partitions_of(topics)}
        topics = list(resolved.values())
        if group.assignor == "uniform" and all(each == topics[0] for each in topics):
            sizes = [len(each.owned) for each in self.members]
            assert max(sizes) - min(sizes) <= 1

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        owned = [each for member in self.members for each in member.owned]
        assert len(owned) == len(set(owned))

    @invariant()
    def members_own_what_the_group_has_given_them(self) -> None:
        group = self.driver.group
        seen: set[tuple[bytes, int]] = set()
        for member in group.members.values():
            both = member.assigned | member.revoking
            assert not member.assigned & member.revoking and not seen & both
            seen |= both
            assert member.epoch <= group.target_epoch <= group.epoch
            assert (member.state is MemberState.UNREVOKED) == bool(member.revoking) == (member.revoke_due_ms < NEVER)
        for client in self.members:
            known = group.members.get(client.id)
            assert not client.owned or (known is not None and client.owned <= known.assigned | known.revoking)
        targets = [each for target in group.targets.values() for each in target]
        assert len(targets) == len(set(targets)) and set(group.targets) <= set(group.members)
        shared = {each.subscription for each in group.members.values()}
        assert group.subscription_bytes == sum(each.size_bytes for each in shared)
        assert group.size_bytes == group.subscription_bytes + PARTITION_BYTES * len(targets)
        assert group.is_unused or group.due_ms < NEVER


TestRandomConsumerGroup = RandomConsumerGroup.TestCase
TestRandomConsumerGroup.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
