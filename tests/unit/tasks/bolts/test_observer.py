"""Whatever observes a level changes nothing that leaves it, and an observer is told of all that happens."""

from __future__ import annotations

import copy
from collections import Counter

import pytest

from acktree import Config
from acktree.core.data.frames import Kind
from acktree.tasks.bolts.observer import Observer
from acktree.tasks.bolts.rows.frame_rows import ACKED, FAILED, REPORTED
from acktree.testing import LocalCluster, local_levels
from tests.generated import at_random
from tests.generated.running import batches, build, feed

OBSERVED = {Kind.TRACE, Kind.EVENTS, Kind.EMITTED}
TIMES = {Kind.STATISTICS}  # latencies are the machine's


class Counts(Observer):
    """Counts what it is told, by component."""

    sees_tuples = True

    def __init__(self, counted):
        self.counted, self.rows = counted, []

    def received(self, rows, component, task):
        self.counted[component, "received"] += len(rows.lineage)
        self.rows.append((component, rows))

    def executed(self, rows, row, spent_ms):
        self.counted["any", "executed"] += 1

    def executed_batch(self, rows, batch, spent_ms):
        self.counted["any", "executed"] += batch.num_rows

    def emitted(self, emitted):
        self.counted[emitted.component, "emitted"] += emitted.emission.batch.num_rows

    def driver_rows(self):
        for component, rows in self.rows:
            self.counted[component, "acked"] += sum(fate in {ACKED, REPORTED} for fate in rows.fate)
            self.counted[component, "failed"] += rows.fate.count(FAILED)
        return iter(())


def run(drawn, run_level):
    topology, spouts = build(drawn)
    config = Config(partitions=2, debug=True, trace_sample_rate=1)
    with pytest.MonkeyPatch.context() as patch, LocalCluster() as cluster:
        patch.setattr(local_levels, "run_level", run_level)
        running = cluster.submit(topology, config=config)
        running.debug(on=True)
        for batch in batches(drawn):
            feed(drawn, spouts, batch)
            cluster.advance()
        return running.stats()


@pytest.mark.parametrize("seed", range(4))
def test_what_observes_a_level_changes_nothing_that_leaves_it(seed):
    run_level, ran = local_levels.run_level, []

    def twice(plan, index, partition, rows, store, *, observe, **named):
        twin = copy.deepcopy(store)
        first = list(run_level(plan, index, partition, rows, store, observe=observe, **named))
        second = list(run_level(plan, index, partition, rows, twin, **named))
        ran.append({row.kind for row in first} & OBSERVED)
        assert [row for row in first if row.kind not in OBSERVED | TIMES] == [
            row for row in second if row.kind not in TIMES
        ]
        assert store is None or store.blobs == twin.blobs
        return first

    run(at_random.topology(seed, largest=60), twice)
    assert set().union(*ran) == OBSERVED, "something was observed"


@pytest.mark.parametrize("seed", range(4))
def test_an_observer_is_told_of_all_that_is_counted(seed):
    run_level, counted = local_levels.run_level, Counter()

    def observed(plan, index, partition, rows, store, *, observe, **named):
        def also(plan, clock_ms):
            return [Counts(counted), *observe(plan, clock_ms)]

        return list(run_level(plan, index, partition, rows, store, observe=also, **named))

    stats = run(at_random.topology(seed, largest=60), observed)
    executed = 0
    for component, found in ((name, part.total) for name, part in stats.components.items()):
        if (component, "received") in counted:
            assert counted[component, "received"] == found.executed
            assert counted[component, "acked"] <= found.acked  # else held, and acked later
            executed += found.executed
        if found.emitted:
            assert counted[component, "emitted"] == found.emitted
    assert counted["any", "executed"] == executed
