"""How latencies are spread, and why spouts were not asked, beside lists of what was added."""

from __future__ import annotations

from collections import Counter, defaultdict

from hypothesis import given
from hypothesis import strategies as st

from acktree.core.stats.counters import Counters
from acktree.core.stats.statistics import Stats

frames = st.lists(
    st.tuples(
        st.sampled_from([1, 2]),
        st.sampled_from(["a:default", "b:more"]),
        st.integers(0, 10**9),
        st.integers(1, 5000),
    ),
    max_size=30,
)


@given(frames, frames)
def test_a_spread_counts_each_tuple_below_the_power_of_two_of_its_frames_average(executed, processed):
    counters, wanted = Counters(), {}
    for name, given_frames in (("execute_ms", executed), ("process_ms", processed)):
        counts = Counter()
        for task, stream, total_us, tuples in given_frames:
            counters.add_latency("bolt", task, stream, name, total_us / 1000, tuples)
            average_us = total_us // tuples
            counts[next(power for power in range(60) if average_us < 2**power)] += tuples
        wanted[name] = dict(counts)
    bolt = Stats.of(Counters.from_bytes(counters.to_bytes()), components=["bolt"])["bolt"]
    assert (bolt.execute_spread, bolt.process_spread) == (wanted["execute_ms"], wanted["process_ms"])
    assert "" not in bolt.streams


times = st.lists(
    st.tuples(st.sampled_from([3, 4]), st.sampled_from(["inactive", "inbox_full"]), st.integers(0, 10**7)),
    max_size=20,
)


@given(times)
def test_the_times_in_which_a_spout_was_not_asked_add_up_by_reason_and_task(waits):
    counters, of_task, of_all = Counters(), defaultdict(Counter), Counter()
    for task, why, us in waits:
        counters.add_not_asked("spout", task, why, us / 1_000_000)
        of_task[task][why] += us
        of_all[why] += us
    spout = Stats.of(counters, components=["spout"])["spout"]
    assert spout.not_asked_secs == {why: us / 1_000_000 for why, us in of_all.items() if us}
    for task, numbers in spout.tasks.items():
        assert numbers.not_asked_secs == {why: us / 1_000_000 for why, us in of_task[task].items() if us}
