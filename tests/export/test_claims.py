"""Claims of a shared export, without IO: each offset belongs to one batch, and each batch is finished once.

A model has three processes that read the state, are paused, and write it later. A replacement succeeds only if the
version is the one that was read.
"""

from __future__ import annotations

import copy
import json
import random
from collections import Counter

import pytest

from amqpd.storage.export import claims
from amqpd.storage.export.claims import LOOKS, WINDOW, Claim, LifeWatch, SharedState, StaleOwner, StateChanged

KEY = "//tasks"


def new_state():
    return SharedState("0a", {}, is_checked=True)


def new_claim(token, first=0, stop=10):
    return Claim(0, {KEY: ["q", first, stop]}, "tasks", token, "host", 1.0, token)


def begin(state, token, first, stop, seen=None):
    claim = new_claim(token, first, stop)
    claims.begin(state, seen or copy.deepcopy(state), {KEY: {"id": "q", "offset": stop}}, claim)
    return claim


def test_two_processes_that_chose_from_one_state_get_one_batch():
    state = new_state()
    seen = copy.deepcopy(state)
    begin(state, "a", 0, 10, seen)
    with pytest.raises(StateChanged):
        begin(state, "b", 0, 10, seen)
    assert begin(state, "b", 10, 20).batch == 2
    assert [claim.spans[KEY] for claim in state.claims] == [["q", 0, 10], ["q", 10, 20]]


def test_no_batch_begins_before_the_target_is_checked():
    with pytest.raises(StateChanged):
        begin(SharedState("0a", {}), "a", 0, 10)


def test_earlier_owner_cannot_fix_a_claim_that_was_taken_over():
    state = new_state()
    claim = begin(state, "a", 0, 10)
    taken = claims.take_over(state, copy.deepcopy(claim), "b", "other", 1.0)
    assert (taken.token, taken.attempt, taken.moves) == ("b", "b", None)
    with pytest.raises(StaleOwner, match="batch 1: other has taken it over"):
        claims.fix(state, 1, "a", [["s", "f"]], (10, 100, 0))
    claims.fix(state, 1, "b", [["s", "f"]], (10, 100, 0))
    claims.finish(state, 1)
    assert (state.rows, state.bytes, state.claims) == (10, 100, [])
    claims.finish(state, 1)  # the answer to the first one was lost
    assert state.rows == 10
    with pytest.raises(StaleOwner, match="has finished it"):
        claims.fix(state, 1, "a", [["s", "f"]], (10, 100, 0))


def test_fixed_claim_keeps_its_files_when_it_is_taken_over():
    state = new_state()
    claim = begin(state, "a", 0, 10)
    claims.fix(state, 1, "a", [["s", "f"]], (10, 100, 1))
    taken = claims.take_over(state, copy.deepcopy(claim), "b", "other", 1.0)
    assert (taken.token, taken.attempt, taken.moves, taken.rejected) == ("b", "a", [["s", "f"]], 1)
    with pytest.raises(StateChanged):
        claims.take_over(state, new_claim("a"), "c", "third", 1.0)
    claims.open_again(state, 1, "b")
    assert (claim.moves, claim.attempt) == (None, "b")


def test_released_claim_is_free_at_once_but_a_lost_one_stays():
    state = new_state()
    claim = begin(state, "a", 0, 10)
    watch = LifeWatch(1.0)
    claims.release(state, 1, "other")
    assert claim.token == "a" and not watch.is_gone(claim)
    claims.release(state, 1, "a")
    assert watch.is_gone(claim)
    assert claims.take_over(state, copy.deepcopy(claim), "b", "other", 1.0).token == "b"


def test_slots_of_tables_are_not_shared_by_open_batches():
    state = new_state()
    for number in range(WINDOW - 1):
        assert state.has_room
        claim = begin(state, str(number), number, number + 1)
        if number:
            claims.fix(state, claim.batch, claim.token, [], (1, 1, 0))
            claims.finish(state, claim.batch)
    assert state.has_room and begin(state, "last", 63, 64).batch == WINDOW
    assert not state.has_room  # batch 65 has the slot of batch 1, which is open
    with pytest.raises(StateChanged):
        begin(state, "more", 64, 65)


def test_exported_offset_is_that_of_the_first_open_batch():
    state = new_state()
    assert state.exported_offset(KEY, "q") == 0
    first, second = begin(state, "a", 5, 10), begin(state, "b", 10, 20)
    assert state.exported_offset(KEY, "q") == 5
    claims.fix(state, second.batch, "b", [], (10, 10, 0))
    claims.finish(state, second.batch)
    assert state.exported_offset(KEY, "q") == 5
    claims.fix(state, first.batch, "a", [], (5, 5, 0))
    claims.finish(state, first.batch)
    assert state.exported_offset(KEY, "q") == 20
    assert state.exported_offset(KEY, "declared again") == 0


def test_state_survives_its_json():
    state = new_state()
    begin(state, "a", 0, 10)
    assert SharedState.from_json(json.loads(json.dumps(state.to_json()))) == state
    with pytest.raises(ValueError, match="another version"):
        SharedState.from_json({**state.to_json(), "version": 9})
    with pytest.raises(KeyError):
        SharedState.from_json({"version": 1})


def test_owner_is_gone_after_looks_without_a_change():
    watch, claim = LifeWatch(1.0), new_claim("a")
    for beat in ("1", "2", None):
        for _ in range(LOOKS):
            watch.look({"a": beat})
            assert not watch.is_gone(claim)
    watch.look({"a": None})
    assert watch.is_gone(claim)
    watch.look({"a": "3"})
    assert not watch.is_gone(claim)
    watch.look({})
    assert not watch.is_gone(claim)


def test_slow_owner_gets_more_looks():
    watch, claim = LifeWatch(0.5), new_claim("a")
    for _ in range(2 * LOOKS):
        watch.look({"a": "1"})
        assert not watch.is_gone(claim)
    watch.look({"a": "1"})
    assert watch.is_gone(claim)


class Process:
    """One process of the model.

    Attributes:
        seen: The state at its last look, from which it chooses its next batch.
        claim: The claim that it works at, as it was when the process wrote it.
        delayed: A change of the state that it has prepared and not written: the state, its version, the claim.
    """

    def __init__(self):
        self.seen = new_state()
        self.claim = None
        self.delayed = None


class Sharing:
    """Three processes work step by step. Each may be paused between reading the state and writing it, and be killed."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.state, self.version = new_state(), 0
        self.processes = [Process() for _ in range(3)]
        self.tokens = 0
        self.visible = {}  # first offset -> the attempts whose files are visible
        self.events = Counter()

    def change(self, process, change):
        """Read the state and change it, as `SharedCheckpoint._update` does. Write it now, or later."""
        state = copy.deepcopy(self.state)
        try:
            claim = change(state)
        except (StaleOwner, StateChanged) as error:
            self.events[type(error)] += 1
            process.claim = None
            return
        process.delayed = state, self.version, copy.deepcopy(claim)
        if self.rng.random() < 0.7:
            self.write(process)

    def write(self, process):
        state, version, claim = process.delayed
        process.delayed = process.claim = None
        if version == self.version:
            self.state, self.version = state, self.version + 1
            process.claim = claim
        else:
            self.events["conflict"] += 1

    def work(self, process):
        """Do the next step of a process. An owner whose claim is taken over may be alive."""
        self.tokens += 1
        token, claim = f"t{self.tokens}", process.claim
        if self.rng.random() < 0.7:
            process.seen = copy.deepcopy(self.state)
        seen = process.seen
        if process.delayed is not None:
            self.write(process)
        elif claim is None and seen.claims and self.rng.random() < 0.6:
            left = self.rng.choice(seen.claims)
            self.events["taken over"] += 1
            self.change(process, lambda state: claims.take_over(state, left, token, "x", 1.0))
        elif claim is None:
            first = seen.position.get(KEY, {"offset": 0})["offset"]
            self.change(process, lambda state: begin(state, token, first, first + 5, seen))
        elif claim.moves is None:

            def fix(state):
                claims.fix(state, claim.batch, claim.token, [["", claim.token]], (5, 0, 0))
                return state.claim_of(claim.batch)

            self.change(process, fix)
        else:
            self.visible.setdefault(claim.spans[KEY][1], set()).add(claim.moves[0][1])
            self.change(process, lambda state: claims.finish(state, claim.batch))

    def run(self, steps):
        for _ in range(steps):
            number = self.rng.randrange(3)
            if self.rng.random() < 0.03:
                self.processes[number] = Process()
            else:
                self.work(self.processes[number])
            self.check()

    def check(self):
        assert all(len(attempts) == 1 for attempts in self.visible.values())
        done = self.state.exported_offset(KEY, "q")
        assert set(range(0, done, 5)) <= set(self.visible)  # no hold is released for offsets that are not exported
        assert self.state.rows == 5 * (self.state.batch - len(self.state.claims))
        assert len(self.state.claims) <= self.state.batch


@pytest.mark.parametrize("seed", range(4))
def test_each_offset_is_visible_once_whatever_processes_do(seed):
    model = Sharing(seed)
    model.run(2000)
    assert model.state.batch > 50 and model.state.rows > 250
    assert min(model.events[kind] for kind in (StaleOwner, "conflict", "taken over")) > 20, model.events
