"""The account of effects that happen once: what is wrong is found."""

from __future__ import annotations

import pytest

pytest.importorskip("pika")
pytest.importorskip("sqlalchemy")

from tests.chaos.exactly_account import account_of
from tests.chaos.exactly_topology import PARTS, is_given_up, is_given_up_behind

PUT = 40


def effects(sources=("position",)):
    """What is there where all went well."""
    direct = [
        (source, number, part, 1)
        for source in sources
        for number in range(PUT)
        for part in range(PARTS)
        if not is_given_up(number)
    ]
    counted = [row for row in direct if not is_given_up_behind(row[1], row[2])]
    return {"direct": direct, "totals": counted}, {f"{s} {n} {part}": 1 for s, n, part, _ in counted}


def findings(tables, memory, sources=("position",)):
    account = account_of(PUT, sources, tables, memory)
    return {where: len(lines) for where, lines in account.findings.items()}, account.doubles


def test_where_each_effect_happened_once_nothing_is_found():
    assert findings(*effects()) == ({}, 0)
    assert any(map(is_given_up, range(PUT)))
    assert any(is_given_up_behind(number, 0) for number in range(PUT))


@pytest.mark.parametrize("where", ["direct", "totals"])
def test_a_row_that_is_missing_or_there_twice_or_was_given_up_is_found(where):
    tables, memory = effects()
    row = tables[where].pop()
    assert findings(tables, memory) == ({where: 1}, 0)
    tables[where] += [row, (*row[:3], 2)]
    assert findings(tables, memory) == ({where: 1}, 0)
    tables[where].pop()
    given_up = next(number for number in range(PUT) if is_given_up(number))
    tables[where].append(("position", given_up, 0, 1))
    assert findings(tables, memory) == ({where: 1}, 0)


def test_a_part_that_memory_lost_or_counted_twice_is_found():
    tables, memory = effects()
    memory["position 0 0"] = 2
    del memory["position 0 1"]
    assert findings(tables, memory) == ({"memory": 2}, 0)


def test_a_double_of_a_queue_without_keys_is_counted_and_needs_a_kill_between():
    tables, memory = effects(("plain",))
    row = tables["direct"][0]
    tables["direct"].append((*row[:3], 2))
    memory["plain 0 0"] = 2
    assert findings(tables, memory, ("plain",)) == ({}, 2)
    tables["direct"].append((*row[:3], 2))
    assert findings(tables, memory, ("plain",)) == ({"direct": 1}, 3)
