"""The metadata store compared with a dict: any changes, split over two opens, leave the same rows."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metadata_rows import VHOST, CommitResults, all_rows, open_metadata, typed_rows
from profiles import examples

from amqpd.storage.metadata.store import (
    BindingRow,
    Change,
    Delete,
    ExchangeRow,
    GlobalParameterRow,
    Put,
    QueueRow,
    Row,
    UserRow,
)

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
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
changes = st.lists(st.one_of(st.builds(Put, rows), st.builds(Delete, rows)), max_size=12)


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
        case _:
            return ("b", *row)


@settings(max_examples=examples(40), deadline=None)
@given(submissions=st.lists(changes, max_size=6), split=st.integers(0, 6))
def test_any_changes_leave_the_same_rows_as_in_a_dict(
    tmp_path_factory: pytest.TempPathFactory, submissions: list[list[Change]], split: int
) -> None:
    data_dir = tmp_path_factory.mktemp("twin")
    twin: dict[tuple[object, ...], Row] = {}
    results = CommitResults()
    for part in (submissions[:split], submissions[split:]):
        with open_metadata(data_dir, "", (VHOST,)) as (metadata, _):
            with metadata._changed:
                for submission in part:
                    metadata.submit(submission, results.done(None))
            assert all(error is None for _, error in results.take(len(part)))
        for change in (change for submission in part for change in submission):
            if isinstance(change, Put):
                twin[key_of(change.row)] = change.row
            elif isinstance(change, Delete):
                twin.pop(key_of(change.row), None)
    with open_metadata(data_dir) as (_, state):
        assert all_rows(state) == typed_rows([VHOST, *twin.values()])
