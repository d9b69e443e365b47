"""The metadata store compared with a dict: any changes, split over two opens, leave the same rows."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metadata_rows import VHOST, CommitResults, all_rows, open_metadata, typed_rows
from profiles import examples

from amqpd.storage.metadata.rows import (
    BindingRow,
    Change,
    Delete,
    DeleteBindings,
    ExchangeRow,
    GlobalParameterRow,
    Put,
    QueueRow,
    Row,
    UserRow,
    VhostRow,
)

names = st.sampled_from(["a", "b"]) | st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
keys = st.one_of(names, st.binary(max_size=4).map(lambda key: key.decode("utf-8", "surrogateescape")))
rows = st.one_of(
    st.builds(QueueRow, st.just("/"), names, names, st.booleans(), st.booleans(), st.booleans(), st.binary(max_size=3)),
    st.builds(ExchangeRow, st.just("/"), names, names, arguments=st.binary(max_size=3)),
    st.builds(
        BindingRow, st.just("/"), names, names, st.sampled_from(["queue", "exchange"]), keys, st.binary(max_size=3)
    ),
    st.builds(UserRow, names, names, names, st.lists(names, max_size=2).map(tuple)),
    st.builds(GlobalParameterRow, names, names),
)
ends = st.builds(DeleteBindings, st.just("/"), names, st.sampled_from(["queue", "exchange"]))
changes = st.lists(st.one_of(st.builds(Put, rows), st.builds(Delete, rows), ends), max_size=12)


def key_of(row: Row) -> tuple[object, ...]:
    match row:
        case QueueRow():
            return ("q", row.id)
        case ExchangeRow():
            return ("e", row.vhost, row.name)
        case UserRow():
            return ("u", row.name)
        case GlobalParameterRow():
            return ("g", row.name)
        case VhostRow():
            return ("v", row.name)
        case _:
            return ("b", *row)


def is_end(row: BindingRow, change: DeleteBindings) -> bool:
    is_source = change.kind == "exchange" and row.source == change.name
    return is_source or (row.destination, row.destination_type) == (change.name, change.kind)


class Twin:
    """The rows as a dict."""

    def __init__(self, *first: Row) -> None:
        self.rows = {key_of(row): row for row in first}

    def apply(self, change: Change) -> None:
        if isinstance(change, Put):
            self.rows[key_of(change.row)] = change.row
        elif isinstance(change, Delete):
            self.rows.pop(key_of(change.row), None)
        else:
            for row in list(self.rows.values()):
                if isinstance(row, BindingRow) and is_end(row, change):
                    del self.rows[key_of(row)]


@settings(max_examples=examples(40), deadline=None)
@given(submissions=st.lists(changes, max_size=6), split=st.integers(0, 6))
def test_any_changes_leave_the_same_rows_as_in_a_dict(
    tmp_path_factory: pytest.TempPathFactory, submissions: list[list[Change]], split: int
) -> None:
    data_dir = tmp_path_factory.mktemp("twin")
    twin = Twin(VHOST)
    results = CommitResults()
    for part in (submissions[:split], submissions[split:]):
        with open_metadata(data_dir, "", (VHOST,)) as (metadata, _):
            with metadata._changed:
                for submission in part:
                    metadata.submit(submission, results.done(None))
            assert all(error is None for _, error in results.take(len(part)))
        for change in (change for submission in part for change in submission):
            twin.apply(change)
    with open_metadata(data_dir) as (_, state):
        assert all_rows(state) == typed_rows(twin.rows.values())


@pytest.mark.parametrize("kind", ["queue", "exchange"])
def test_changes_of_one_submission_keep_their_order(tmp_path: Path, kind: Literal["queue", "exchange"]) -> None:
    """In any order: an object and its binding are written and deleted, and written again under the same key."""
    twin = Twin(VHOST)
    with open_metadata(tmp_path, "", (VHOST,)) as (metadata, _):
        results = CommitResults()
        for number, order in enumerate(permutations(range(5))):
            name = f"n{number}"
            row = QueueRow("/", name, name) if kind == "queue" else ExchangeRow("/", name, "direct")
            other = row._replace(auto_delete=True)
            changes = (
                *(Put(row), Delete(row), Put(other)),
                *(Put(BindingRow("/", "x", name, kind, "k")), DeleteBindings("/", name, kind)),
            )
            submission: list[Change] = [changes[index] for index in order]
            metadata.submit(submission, results.done(None))
            for change in submission:
                twin.apply(change)
        results.take(number + 1)
    with open_metadata(tmp_path) as (_, state):
        assert all_rows(state) == typed_rows(twin.rows.values())
