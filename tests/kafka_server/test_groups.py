"""The state machine of a consumer group, without a broker: table tests and a random walk."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from amqpd.kafka_server.group_offsets import subscribed_topics
from amqpd.kafka_server.groups import (
    GROUP_BYTES_MAX,
    INITIAL_WAIT_MS,
    MEMBER_BYTES_MAX,
    MEMBERS_MAX,
    NEVER,
    ConsumerGroup,
    GroupState,
    JoinAnswer,
    JoinRequest,
    SyncAnswer,
    SyncRequest,
)
from amqpd.kafka_server.pace import run_all

SESSION_MS = 10_000
REBALANCE_MS = 30_000
RANGE = (("range", b"m"),)


class Driver:
    """A group with a clock, and the answers that its clients got."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.group = ConsumerGroup("g", self.now)
        self.joined: list[JoinAnswer] = []
        self.synced: list[SyncAnswer] = []
        self.serial = 0

    def join(
        self,
        member_id: str = "",
        protocols: tuple[tuple[str, bytes], ...] = RANGE,
        instance: str | None = None,
        needs_id: bool = False,
        skip: bool = True,
        kind: str = "consumer",
    ) -> list[JoinAnswer]:
        self.serial += 1
        answers: list[JoinAnswer] = []
        request = JoinRequest(member_id, instance, "c", "h", SESSION_MS, REBALANCE_MS, kind, protocols, needs_id, skip)
        self.group.join(request, f"m{self.serial}", self.now, answers.append)
        return answers

    def sync(
        self, member: str, generation: int, assignments: dict[str, bytes] | None = None, instance: str | None = None
    ) -> list[SyncAnswer]:
        answers: list[SyncAnswer] = []
        request = SyncRequest(member, instance, generation, None, None, assignments or {})
        self.group.sync(request, self.now, answers.append)
        return answers

    def beat(self, member: str, generation: int | None = None) -> int:
        return self.group.heartbeat(member, None, self.group.generation if generation is None else generation, self.now)

    def wait(self, ms: int) -> None:
        """Let time pass as the broker's timer would."""
        end = self.now + ms
        while self.group.due_ms <= end:
            self.now = max(self.now, self.group.due_ms)
            self.group.on_time(self.now)
            assert self.group.due_ms > self.now
        self.now = end

    def stable(self, *instances: str | None) -> list[str]:
        """Make a stable group of these members and return their ids; the first is the leader."""
        answers = [self.join(instance=each) for each in instances]
        self.wait(INITIAL_WAIT_MS)
        ids = [each[0].member_id for each in answers]
        waiting = [self.sync(each, 1) for each in ids[1:]]
        self.sync(ids[0], 1, {each: each.encode() for each in ids})
        assert all(each[0].assignment for each in waiting)
        assert self.group.state is GroupState.STABLE
        return ids


def test_first_join_waits_for_others_and_the_first_is_the_leader() -> None:
    driver = Driver()
    first, second = driver.join(), driver.join()
    driver.wait(INITIAL_WAIT_MS - 1)
    assert not first and not second
    driver.wait(1)
    assert first[0].error == second[0].error == 0
    assert first[0].leader == second[0].leader == first[0].member_id
    assert [each.member_id for each in first[0].members] == [first[0].member_id, second[0].member_id]
    assert second[0].members == ()
    assert driver.group.state is GroupState.COMPLETING


def test_new_member_gets_its_id_first_and_joins_with_it() -> None:
    driver = Driver()
    answer = driver.join(needs_id=True)[0]
    assert answer.error == 79 and answer.member_id
    assert not driver.group.is_unused
    joined = driver.join(answer.member_id, needs_id=True)
    driver.wait(INITIAL_WAIT_MS)
    assert joined[0].error == 0 and joined[0].member_id == answer.member_id


def test_id_that_is_not_used_in_time_is_forgotten() -> None:
    driver = Driver()
    answer = driver.join(needs_id=True)[0]
    driver.wait(SESSION_MS)
    assert driver.group.is_unused
    assert driver.join(answer.member_id)[0].error == 25


def test_sync_waits_for_the_leader() -> None:
    driver = Driver()
    first, second = driver.join(), driver.join()
    driver.wait(INITIAL_WAIT_MS)
    waiting = driver.sync(second[0].member_id, 1)
    assert not waiting
    leader = driver.sync(first[0].member_id, 1, {second[0].member_id: b"two"})
    assert waiting[0] == SyncAnswer(0, "consumer", "range", b"two")
    assert leader[0].assignment == b""


def test_join_of_a_stable_group_starts_a_rebalance_that_ends_when_all_have_joined() -> None:
    driver = Driver()
    (first,) = driver.stable(None)
    second = driver.join()
    assert driver.group.state is GroupState.PREPARING and not second
    assert driver.beat(first) == 27
    again = driver.join(first)
    assert again[0].generation == second[0].generation == 2


def test_member_that_does_not_rejoin_in_time_is_removed() -> None:
    driver = Driver()
    (first,) = driver.stable(None)
    second = driver.join()
    for _ in range(6):  # it sends heartbeats, but does not join
        driver.wait(REBALANCE_MS // 6 - 1)
        assert driver.beat(first) == 27
    driver.wait(10)
    assert second[0].leader == second[0].member_id
    assert driver.beat(first) == 25


def test_dead_member_is_removed_after_its_session_and_others_rebalance() -> None:
    driver = Driver()
    first, second = driver.stable(None, None)
    driver.wait(SESSION_MS - 1)
    assert driver.beat(first) == 0
    driver.wait(1)
    assert driver.beat(first) == 27
    assert second not in driver.group.members


def test_member_that_never_syncs_is_removed_after_the_rebalance_timeout() -> None:
    driver = Driver()
    first, second = driver.join(), driver.join()
    driver.wait(INITIAL_WAIT_MS)
    waiting = driver.sync(second[0].member_id, 1)
    for _ in range(6):
        driver.wait(REBALANCE_MS // 6 - 1)
        driver.beat(first[0].member_id)
    driver.wait(10)
    assert waiting[0].error == 27
    assert list(driver.group.members) == [second[0].member_id]
    assert driver.group.leader == second[0].member_id


def test_last_member_leaves_and_the_group_is_empty() -> None:
    driver = Driver()
    (first,) = driver.stable(None)
    assert driver.group.leave(first, None, driver.now) == 0
    assert driver.group.state is GroupState.EMPTY and driver.group.is_unused
    assert driver.group.size_bytes == 0
    assert driver.group.leave(first, None, driver.now) == 25


def test_protocol_is_chosen_by_votes_among_those_all_know() -> None:
    driver = Driver()
    driver.join(protocols=(("a", b"1"), ("b", b"2"), ("c", b"3")))
    driver.join(protocols=(("c", b"4"), ("b", b"5")))
    last = driver.join(protocols=(("c", b"6"), ("b", b"7"), ("a", b"8")))
    driver.wait(INITIAL_WAIT_MS)
    assert last[0].protocol == "c"


def test_member_without_a_common_protocol_is_refused() -> None:
    driver = Driver()
    driver.stable(None)
    assert driver.join(protocols=(("other", b""),))[0].error == 23
    assert driver.join(kind="connect")[0].error == 23
    assert driver.join(protocols=())[0].error == 23


def test_static_member_keeps_its_assignment_without_a_rebalance() -> None:
    driver = Driver()
    leader, member = driver.stable("one", "two")
    answer = driver.join(instance="two")[0]
    assert answer.error == 0 and answer.generation == 1 and answer.members == ()
    assert driver.group.state is GroupState.STABLE
    assert driver.sync(answer.member_id, 1, instance="two")[0].assignment == member.encode()
    assert driver.group.heartbeat(member, "two", 1, driver.now) == 82
    assert driver.sync(member, 1, instance="two")[0].error == 82
    assert driver.join(member, instance="two")[0].error == 82
    assert driver.group.leave(member, "two", driver.now) == 82
    assert driver.group.leave("", "two", driver.now) == 0
    assert driver.group.leave("", "two", driver.now) == 25
    assert driver.group.leader == leader


def test_static_leader_that_returns_skips_the_assignment_or_becomes_a_follower() -> None:
    driver = Driver()
    leader, _ = driver.stable("one", "two")
    answer = driver.join(instance="one")[0]
    assert answer.skip_assignment and answer.leader == answer.member_id and len(answer.members) == 2
    older = driver.join(instance="one", skip=False)[0]
    assert not older.skip_assignment and older.leader == answer.member_id != older.member_id and older.members == ()
    assert driver.sync(older.member_id, 1, instance="one")[0].assignment == leader.encode()


def test_static_members_that_wait_are_fenced_by_their_successor() -> None:
    driver = Driver()
    first = driver.join(instance="one")
    second = driver.join(instance="one")
    assert first[0].error == 82 and not second
    driver.wait(INITIAL_WAIT_MS)
    assert second[0].error == 0


def test_static_member_stays_over_a_rebalance_until_its_session_ends() -> None:
    driver = Driver()
    _, static = driver.stable(None, "one")
    driver.group.leave("m1", None, driver.now)
    driver.wait(SESSION_MS - 1)
    assert list(driver.group.members) == [static]
    driver.wait(1)
    assert driver.group.state is GroupState.EMPTY


def test_follower_that_joins_again_with_the_same_metadata_gets_the_same_generation() -> None:
    driver = Driver()
    leader, follower = driver.stable(None, None)
    assert driver.join(follower)[0].generation == 1
    assert driver.group.state is GroupState.STABLE
    assert driver.join(follower, protocols=(("range", b"new"),)) == []
    assert driver.group.state is GroupState.PREPARING
    assert driver.join(leader)[0].generation == 2


def test_leader_that_joins_again_starts_a_rebalance() -> None:
    driver = Driver()
    leader, _ = driver.stable(None, None)
    assert driver.join(leader) == []
    assert driver.group.state is GroupState.PREPARING


def test_wrong_generations_and_members_are_refused() -> None:
    driver = Driver()
    (first,) = driver.stable(None)
    assert driver.beat(first, 7) == 22
    assert driver.beat("nobody") == 25
    assert driver.sync(first, 7)[0].error == 22
    assert driver.sync("nobody", 1)[0].error == 25
    assert driver.group.commit_error(first, None, 1, driver.now) == 0
    assert driver.group.commit_error(first, None, 0, driver.now) == 22
    assert driver.group.commit_error("nobody", None, 1, driver.now) == 25
    assert driver.group.commit_error("", None, -1, driver.now) == 25
    wrong = SyncRequest(first, None, 1, "consumer", "sticky", {})
    answers: list[SyncAnswer] = []
    driver.group.sync(wrong, driver.now, answers.append)
    assert answers[0].error == 23


def test_simple_consumer_commits_only_while_the_group_is_empty() -> None:
    driver = Driver()
    assert driver.group.commit_error("", None, -1, driver.now) == 0
    driver.join()
    assert driver.group.commit_error("", None, -1, driver.now) == 25


def test_commit_between_join_and_sync_gets_rebalance_in_progress() -> None:
    driver = Driver()
    answer = driver.join()
    driver.wait(INITIAL_WAIT_MS)
    assert driver.group.commit_error(answer[0].member_id, None, 1, driver.now) == 27


def test_too_many_members_are_refused() -> None:
    driver = Driver()
    for _ in range(MEMBERS_MAX - 1):
        driver.join()
    driver.join(needs_id=True)
    assert driver.join()[0].error == 81
    assert driver.join(needs_id=True)[0].error == 81


def test_too_much_metadata_is_refused() -> None:
    driver = Driver()
    assert driver.join(protocols=(("range", b"x" * MEMBER_BYTES_MAX),))[0].error == 44
    large = (("range", b"x" * (MEMBER_BYTES_MAX - 5)),)
    for _ in range(GROUP_BYTES_MAX // MEMBER_BYTES_MAX):
        assert driver.join(protocols=large) == []
    assert driver.join(protocols=large)[0].error == 44
    driver.wait(INITIAL_WAIT_MS)
    assert driver.sync(driver.group.leader, 1, {driver.group.leader: b"x"})[0].error == 44


def test_closed_connection_drops_the_answer_and_the_member_ends_with_its_session() -> None:
    driver = Driver()
    (first,) = driver.stable(None)
    answers: list[JoinAnswer] = []
    done = answers.append
    request = JoinRequest("", None, "c", "h", SESSION_MS, REBALANCE_MS, "consumer", RANGE, False)
    driver.group.join(request, "lost", driver.now, done)
    driver.group.drop_waiting("lost", done, driver.now)
    again = driver.join(first)
    assert not again  # the lost member may come back
    driver.wait(SESSION_MS)
    assert again[0].generation == 2 and not answers


def test_join_sent_twice_answers_the_first_one() -> None:
    driver = Driver()
    first = driver.join()
    second = driver.join("m1")
    assert first[0].error == 27
    driver.wait(INITIAL_WAIT_MS)
    assert second[0].error == 0


def test_deleted_group_refuses_everything() -> None:
    driver = Driver()
    waiting = driver.join()
    driver.group.kill()
    assert waiting[0].error == 25
    assert driver.join()[0].error == 15
    assert driver.beat("m1") == 15
    assert driver.sync("m1", 1)[0].error == 15
    assert driver.group.leave("m1", None, driver.now) == 15
    assert driver.group.commit_error("", None, -1, driver.now) == 15


def test_subscription_is_read_from_metadata() -> None:
    assert run_all(subscribed_topics([b"\0\1\0\0\0\2\0\1a\0\2bcrest"])) == {"a", "bc"}
    assert run_all(subscribed_topics([b"\0\1\0\0\0\2\0\1a"])) is None
    assert run_all(subscribed_topics([b""])) is None
    assert run_all(subscribed_topics([b"\0\1\x7f\xff\xff\xff"])) is None


class RandomGroup(RuleBasedStateMachine):
    """Clients that join, sync, leave, die and come back, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver()
        self.answers: list[tuple[list[JoinAnswer], int]] = []

    def ids(self) -> list[str]:
        return [*self.driver.group.members, "nobody"]

    @rule(instance=st.sampled_from([None, None, "one", "two"]), needs_id=st.booleans(), skip=st.booleans())
    def join_new(self, instance: str | None, needs_id: bool, skip: bool) -> None:
        self.answers.append((self.driver.join(instance=instance, needs_id=needs_id, skip=skip), self.driver.now))

    @rule(number=st.integers(0, 5), metadata=st.sampled_from([b"m", b"n"]))
    def rejoin(self, number: int, metadata: bytes) -> None:
        ids = self.ids()
        self.answers.append(
            (self.driver.join(ids[number % len(ids)], protocols=(("range", metadata),)), self.driver.now)
        )

    @rule()
    def join_with_given_id(self) -> None:
        for answers, _ in self.answers[-1:]:
            if answers and answers[0].error == 79:
                self.answers.append((self.driver.join(answers[0].member_id, needs_id=True), self.driver.now))

    @rule(number=st.integers(0, 5), generation=st.integers(-1, 0))
    def sync(self, number: int, generation: int) -> None:
        ids = self.ids()
        member = ids[number % len(ids)]
        group = self.driver.group
        self.driver.sync(member, group.generation + generation, dict.fromkeys(group.members, b"x"))

    @rule(number=st.integers(0, 5))
    def leave(self, number: int) -> None:
        ids = self.ids()
        self.driver.group.leave(ids[number % len(ids)], None, self.driver.now)

    @rule(number=st.integers(0, 5))
    def close_connection(self, number: int) -> None:
        member = self.driver.group.members.get(self.ids()[number % len(self.ids())])
        if member is not None and member.join_done is not None:
            self.driver.group.drop_waiting(member.id, member.join_done, self.driver.now)

    @rule(ms=st.sampled_from([1, INITIAL_WAIT_MS, SESSION_MS // 2, SESSION_MS, REBALANCE_MS]), beat=st.booleans())
    def wait(self, ms: int, beat: bool) -> None:
        if beat:
            for member in list(self.driver.group.members):
                self.driver.beat(member)
        self.driver.wait(ms)

    @invariant()
    def counts_fit(self) -> None:
        group = self.driver.group
        members = group.members.values()
        assert group.size_bytes == sum(
            sum(len(a) + len(b) for a, b in each.protocols) + len(each.assignment) for each in members
        )
        assert group.leader in group.members or (not group.leader and not group.members)
        assert (group.state is GroupState.EMPTY) == (not group.members) or group.state is GroupState.PREPARING
        if group.state is not GroupState.PREPARING:
            assert all(each.join_done is None for each in members)
        if group.state is not GroupState.COMPLETING:
            assert all(each.sync_done is None for each in members)
        assert group.is_unused or group.due_ms < NEVER

    @invariant()
    def no_answer_comes_twice_or_never(self) -> None:
        for answers, _ in self.answers:
            assert len(answers) <= 1

    def teardown(self) -> None:
        """Without any client all sessions end, and every answer that waits has come or was dropped."""
        self.driver.wait(10 * (SESSION_MS + REBALANCE_MS))
        assert self.driver.group.is_unused
        assert not self.driver.group.members
        assert self.driver.group.size_bytes == 0


TestRandomGroup = RandomGroup.TestCase
TestRandomGroup.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
