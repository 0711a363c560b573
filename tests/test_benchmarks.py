"""Benchmarks but for what needs Spark: commands, lines of JSON, ratios, what is kept, drawn and written."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from acktree import Config
from acktree.checkpoint.envelope import checksum_of, sealed
from benchmarks import account as faults
from benchmarks import (
    acker,
    broker_tables,
    chaos,
    checksums,
    children,
    cluster,
    compare,
    fan_out,
    floor,
    frames,
    gates,
    latency,
    machine,
    markdown,
    named,
    pictures,
    python_side,
    report,
    results,
    soak,
    spout_side,
    start,
    table,
    waiting,
    word_count,
)
from benchmarks.__main__ import BENCHMARKS
from benchmarks.meter import Meter
from benchmarks.work import VOCABULARY, WORDS, Variant, save_sentences, sentences, vocabulary


def finding(rate, cpu=2.0, **more):
    return {
        "benchmark": "word_count",
        "variant": {"bolts": "arrow"},
        "roots_per_sec": rate,
        "cpu_us_per_root": cpu,
        "others_cores": 0.1,
        "machine": {"cores": 2, "acktree": "abc"},
        **more,
    }


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """Runs that take no time: what a name finds, in the order asked."""
    order: list[tuple[str, ...]] = []

    def run(words, further):
        order.append((*words, *further))
        found = finding({"word_count": 80, "latency": 50}.get(words[0], 100) * len(order))
        return found | (
            {"p50_ms": 300.0, "p99_ms": 500.0} if words[0] == "latency" else {"micro_batch_ms": 100.0}
        )

    monkeypatch.setattr(machine, "busy_share", lambda: 0.0)
    monkeypatch.setattr(compare, "run", run)
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    return order


# --- the work -----------------------------------------------------------------------------------------


def test_sentences_are_six_words_of_a_fixed_vocabulary_and_the_same_in_every_run():
    words = vocabulary()
    assert len(set(words)) == VOCABULARY
    assert words == vocabulary()
    lines = sentences(100, seed=3)
    assert lines == sentences(100, seed=3) != sentences(100, seed=4)
    assert all(len(line.split()) == WORDS and set(line.split()) <= set(words) for line in lines)


def test_a_sentence_has_the_length_that_is_asked_for_and_the_same_number_of_words():
    lines = sentences(100, seed=3, sentence_bytes=250)
    assert {len(line) for line in lines} <= set(range(245, 251))
    assert len(set(vocabulary(sentence_bytes=250))) == VOCABULARY
    assert all(len(line.split()) == WORDS for line in lines)


def test_the_latency_of_a_message_runs_from_when_its_spout_had_emitted_it(monkeypatch):
    meter, now = Meter(), [0.0]
    monkeypatch.setattr("benchmarks.meter.perf_counter", lambda: now[0])
    spout = SimpleNamespace(position=0)
    meter.follow(spout)  # a thousand messages a second
    for secs in range(4):
        now[0], spout.position = float(secs), secs * 1000
        meter.look()
    now[0] = 5.0
    meter.add_acked(range(3000))  # of the first, the 1,001st and the 2,001st it is known
    assert meter.waits_ms(0).tolist() == [5000.0, 4000.0, 3000.0]
    assert len(meter.waits_ms(1)) == 0


def test_no_latency_is_known_of_a_spout_that_is_not_followed():
    meter = Meter()
    meter.add(7)
    assert len(meter.waits_ms(0)) == 0


def test_peers_read_the_very_sentences_that_our_spout_goes_round(tmp_path):
    save_sentences(tmp_path / "sentences.txt", batches=2, batch_rows=5)
    assert (tmp_path / "sentences.txt").read_text().splitlines() == sentences(5, 0) + sentences(5, 1)


def test_consecutive_verdicts_are_one_micro_batch_and_the_cut_one_is_left_out():
    events = [(0.0, 5), (0.01, 5), (1.0, 7), (1.02, 1), (2.1, 4)]
    assert word_count.batch_ends(events) == [(0.01, 10), (1.02, 8)]
    assert word_count.batch_ends([]) == word_count.batch_ends(events[:1]) == []


# --- what runs in this process ------------------------------------------------------------------------


def test_the_cost_of_checksums_is_measured_in_turn_and_they_are_there_again_after_it():
    found = checksums.measure(Variant(bolts="arrow", batch_rows=200), 400, pairs=2)
    assert (len(found["ratios"]), {*found["us_per_root"]}) == (2, {"with", "without"})
    assert checksum_of(sealed(1, b"as before")) != 0


@pytest.mark.parametrize("bolts", ["arrow", "basic", "generator", "hand"])
def test_the_python_side_acks_what_it_measures(bolts):
    tracked = Variant(bolts=bolts, batch_rows=200)
    assert set(python_side.measure(tracked, 400, rounds=1)["by_level"]) == {"level 0", "level 1", "acker"}
    untracked = replace(tracked, tracked=False)
    assert set(python_side.measure(untracked, 400, rounds=1)["by_level"]) == {"level 0", "level 1"}


def test_a_count_behind_a_gate_is_measured_in_turn_with_one_at_least_once():
    found = gates.measure(Variant(batch_rows=200), 400, rounds=1)
    assert set(found["us_per_root"]) == {"at_least_once", "exactly_once"}


def test_what_guards_cost_is_measured_in_turn_with_and_without_them():
    found = python_side.measure_guards(Variant(bolts="basic", batch_rows=200), 400, rounds=2)
    assert set(found["us_per_root"]) == {"guarded", "bare"}
    assert len(found["ratios"]) == 2


@pytest.mark.parametrize("bolts", floor.PER_TUPLE)
def test_the_floor_is_the_work_that_the_micro_batch_does_too(bolts):
    found = floor.of_bolts(bolts, 400, rounds=1, batch_rows=200)
    assert found["us_per_root"] > found["floor_us_per_root"] > 0


def test_the_floor_of_a_spout_is_less_than_the_task_takes():
    found = floor.of_spout("tuple", 400, rounds=1, batch_rows=200)
    assert found["us_per_root"] > found["floor_us_per_root"] > 0


@pytest.mark.parametrize("bolts", ["basic", "hand"])
def test_the_bare_loop_counts_every_word(bolts):
    bare = floor.BareBolts(bolts, [["a b a"], ["b"]])
    bare.run()
    assert bare.count.counts == {"a": 2, "b": 2}


def test_the_bare_spout_emits_every_message():
    bare = floor.BareSpout("tuple", 200, 400)
    bare.run()
    assert bare.spout.position == sum(done for _, done in bare.spout.meter.events) == 400


@pytest.mark.parametrize("spout", ["tuple", "batch"])
@pytest.mark.parametrize("tracked", [True, False])
def test_the_spout_side_delivers_every_verdict_of_what_it_emitted(spout, tracked):
    found = spout_side.measure(spout, 400, rounds=1, tracked=tracked, batch_rows=200)
    assert set(found["by_part"]) == {"emit", "hand over", "ack"}


def test_frames_follow_the_partitions_and_not_the_tasks():
    found = frames.measure(Variant(batch_rows=200), tasks=[2, 3, 12], sentences=600)
    at = {(point["tasks"], point["partitions"]): point for point in found["points"]}
    assert {place: point["frames"] for place, point in at.items()} == {
        (2, 2): 4, (3, 2): 4, (12, 2): 4, (3, 3): 9, (12, 12): 144,
    }  # fmt: skip
    for (_, partitions), point in at.items():
        rows = {kind: count for kind, count in point["rows"]["level 1"].items() if kind != "trace"}
        assert rows == {"deltas": partitions, "statistics": partitions}  # whether one is traced, its id says


def test_a_model_of_a_cluster_acks_all_and_what_reaches_its_driver_is_combined():
    found = cluster.measure(Variant(batch_rows=1000), [2, 16], 6000, rounds=1)
    at = {(point["source"], point["partitions"]): point for point in found["points"]}
    assert {place: point["combiners"] for place, point in at.items()} == {
        ("batch", 2): 0, ("rows", 2): 0, ("batch", 16): 2, ("rows", 16): 2,
    }  # fmt: skip
    assert at["batch", 2]["of_which_for_the_acker"] > 16  # a sum from each level
    assert at["batch", 16]["of_which_for_the_acker"] < 1
    assert 8 <= at["rows", 16]["of_which_for_the_acker"] < 8.1  # its root
    for point in at.values():
        assert point["ceiling_per_sec"] == min(point["driver_per_sec"], point["executors_per_sec"])
        assert min(point["driver_peak_mb"], point["sink_us"], point["executors_us"]) > 0
        assert (
            (point["combiner_peak_mb"] > 0) == (point["bytes_to_combiners"] > 0) == (point["combiners"] > 0)
        )


def test_an_open_root_is_weighed_in_memory_and_on_disk():
    (point,) = acker.measure([1000], at_once=100, rounds=2)["points"]
    assert 20 <= point["memory_bytes_per_root"] < 40
    assert 20 <= point["disk_bytes_per_root"] < 40
    assert min(point["passing_ms"], point["churn_ms"]) > 0


def test_a_tree_has_as_many_children_as_asked_and_each_bolt_of_its_own():
    drawn = fan_out.topology("basic", 10, 2, word_count.Meter(), 5)
    assert [component.id for component in (*drawn.spouts, *drawn.bolts)] == ["numbers", "fan", "take"]


# --- commands -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if name != "peers.spark_bare"])  # needs PySpark
def test_every_benchmark_says_how_it_is_used(name, capsys):
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"benchmarks.{name}").main(["--help"])
    assert ended.value.code == 0
    assert f"python -m benchmarks {name}" in capsys.readouterr().out


def test_without_a_name_the_front_door_says_what_there_is():
    done = subprocess.run([sys.executable, "-m", "benchmarks"], capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in BENCHMARKS)


def test_every_named_run_is_a_command_that_its_benchmark_understands(monkeypatch):
    """Parsed by the benchmark itself; ``measure`` is not reached."""
    parsed: list[argparse.Namespace] = []

    class ParsedError(Exception):
        pass

    def parse(self, arguments):
        parsed.append(real(self, arguments))
        raise ParsedError

    real = argparse.ArgumentParser.parse_args
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    for name in named.RUNS:
        program, *words = named.command(name, rate=1000.0)
        assert program in BENCHMARKS
        if program != "peers.spark_bare":
            with pytest.raises(ParsedError):
                importlib.import_module(f"benchmarks.{program}").main(
                    [*words, "--warm-up", "1", "--secs", "2"]
                )
            assert parsed[-1].secs == 2.0


def test_untracked_messages_have_no_latency(capsys):
    with pytest.raises(SystemExit):
        latency.main(["--untracked"])
    assert "no complete latency" in capsys.readouterr().err


# --- lines --------------------------------------------------------------------------------------------


def test_a_line_says_what_was_measured_where_and_by_which_command(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "word_count", "--secs", "5"])
    found = report.throughput(1000, 2.0, machine.Cost(0.001, 0.002, 0.003, 0.25))
    line = report.Report("word_count", {"bolts": "arrow"}).line(found, {"storm": "2.8.3"})
    assert line == json.loads(json.dumps(line))
    assert (line["roots_per_sec"], line["cpu_us_per_root"], line["others_cores"]) == (500, 6.0, 0.25)
    assert line["cpu_us_by_process"] == {"driver": 1.0, "jvm": 2.0, "workers": 3.0}
    assert set(report.LOAD_KEYS) <= line.keys()
    assert line["command"] == "python -m benchmarks word_count --secs 5"
    assert line["machine"]["storm"] == "2.8.3"


def test_what_is_kept_is_read_again_in_order(tmp_path):
    assert results.kept("word_count", tmp_path) == results.names(tmp_path) == []
    for rate in (1, 2):
        results.keep("word_count", finding(rate), tmp_path)
    assert [line["roots_per_sec"] for line in results.kept("word_count", tmp_path)] == [1, 2]
    assert results.names(tmp_path) == ["word_count"]


# --- comparisons --------------------------------------------------------------------------------------


def test_a_busy_machine_is_refused_without_anyway(monkeypatch):
    monkeypatch.setattr(machine, "busy_share", lambda: 0.9)
    with pytest.raises(SystemExit, match="others take 90%"):
        compare.main(["tracked-arrow/untracked-arrow"])


def test_an_unknown_run_is_refused(capsys):
    with pytest.raises(SystemExit):
        compare.main(["tracked-arrow/strom-java"])
    assert "tracked-arrow/strom-java is no pair" in capsys.readouterr().err


def test_pairs_run_in_turn_and_their_ratio_is_the_median_of_the_rounds(runs, capsys):
    compare.main(["tracked-arrow/storm-java", "--rounds", "3", "--secs", "1"])
    ours, theirs = "word_count", "peers.storm_word_count"
    assert [words[0] for words in runs] == [ours, theirs, theirs, ours, ours, theirs]
    assert all(words[-4:] == ("--warm-up", "20", "--secs", "1") for words in runs)
    assert "roots_per_sec                0.67  (0.40 to 1.07)" in capsys.readouterr().out
    (line,) = results.kept("tracked-arrow_over_storm-java")
    assert line["ratios"]["roots_per_sec"] == {"median": 0.667, "least": 0.4, "greatest": 1.067}
    assert line["first"]["runs"]["roots_per_sec"] == [80, 320, 400]
    assert line["quiet"]


def test_a_forgotten_comparison_is_not_kept(runs):
    compare.main(["tracked-arrow/untracked-arrow", "--rounds", "1", "--forget"])
    assert results.names() == []
    assert len(runs) == 2


def test_a_pair_at_a_rate_runs_at_half_of_the_top_rate_that_was_measured_first(runs):
    compare.main(["latency-arrow/bare", "--rounds", "1"])
    top, ours, theirs = runs
    assert top[:3] == ("word_count", "--bolts", "arrow")
    assert "--rate" not in top
    assert ours[:5] == ("latency", "--bolts", "arrow", "--rate", "40")
    assert theirs[:3] == ("peers.spark_bare", "--rate", "40")
    (line,) = results.kept("latency-arrow_over_bare")
    assert line["ratios"]["p50_ms_over_micro_batch_ms"]["median"] == 3.0
    assert line["ratios"]["p99_ms_over_micro_batch_ms"]["median"] == 5.0


def test_a_ratio_is_taken_only_of_what_every_run_of_both_has():
    assert "p50_ms" not in compare.ratios([{"p50_ms": 1.0}], [{"roots_per_sec": 5}])
    assert "p50_ms" not in compare.ratios([{"p50_ms": 1.0}, {}], [{"p50_ms": 1.0}, {"p50_ms": 2.0}])
    assert "p50_ms" not in compare.ratios([{"p50_ms": None}], [{"p50_ms": 2.0}])


def test_a_peer_that_cannot_run_here_is_left_out_and_the_others_go_on(monkeypatch, runs, capsys):
    ours = compare.run

    def run(words, further):
        if words[0].startswith("peers."):
            raise compare.CannotRunError("there is no mvn on the path")
        return ours(words, further)

    monkeypatch.setattr(compare, "run", run)
    compare.main(["tracked-arrow/storm-java", "tracked-arrow/untracked-arrow", "--rounds", "1"])
    assert "tracked-arrow/storm-java left out: there is no mvn on the path" in capsys.readouterr().out
    assert results.names() == ["tracked-arrow_over_untracked-arrow"]


# --- what the docs show -------------------------------------------------------------------------------


@pytest.fixture
def kept(runs, tmp_path):
    """Results of each kind."""
    compare.main(["tracked-arrow/storm-java", "latency-arrow/bare", "--rounds", "2"])
    latencies = {"p50_ms": 300.0, "p90_ms": 400.0, "p99_ms": 500.0, "micro_batch_ms": 200.0}
    for rate in (100, 500):
        variant = {"bolts": "arrow", "memory": "state", "cores": 2}
        line = report.Report("latency", variant).line({"offered_per_sec": rate, **latencies})
        results.keep("latency", line)
    results.keep("acker", acker.measure([100, 1000], at_once=50, rounds=2))
    sizes = {"jvm_mb": 600.0, "driver_mb": 90.0, "workers_mb": 200.0, "checkpoint_mb": 1.0, "open": 500}
    samples = [{"secs": secs, **sizes} for secs in range(0, 300, 10)]
    results.keep("soak", {"samples": samples, "faults_at_secs": [20.5, 90.0]})
    return tmp_path


def test_the_tables_say_the_ratio_its_spread_and_what_was_not_measured(kept):
    page = table.tables(kept)
    assert "| `tracked-arrow` / `storm-java` | roots_per_sec | **0.73** (0.40 to 1.07)" in page.replace(
        "  ", " "
    )
    assert f"| `tracked-arrow` / `bytewax` | roots_per_sec | {table.MISSING} |" in page
    assert "| 1,000 |" in page


def test_the_rates_of_a_connector_are_medians_of_the_rounds(tmp_path):
    def rates(steady, cpu_us):
        return {"overall": 1.0, "steady": steady, "cpu_us": cpu_us}

    line = {
        "variant": {"broker": "redis", "messages": 5000},
        "rounds": [
            [rates(300, 40), rates(100, 20)],
            [rates(200, 20), rates(150, 10)],
            [rates(1, 1), rates(1, 1)],
        ],
        "ratios": {"overall": 0.5, "steady": 1.33, "cpu_us": 2.0},
        "at": "2026-01-02T03:04:05", "machine": {"acktree": "abc"},
    }  # fmt: skip
    (tmp_path / "queues.jsonl").write_text(json.dumps(line) + "\n")
    head, _, row = broker_tables.rates(tmp_path).splitlines()
    cells = dict(zip(head.split(" | "), row.split(" | "), strict=True))
    assert cells["a second, steady"] == "200 / 100"
    assert cells["CPU a message, without the server"] == "20.0 / 10.0 µs: 2.00"
    assert cells["ratio, steady"] == "**1.33**"


def test_the_pages_have_the_tables_that_their_results_give():
    for page, blocks in table.PAGES.items():
        now = page.read_text(encoding="utf-8")
        assert markdown.written(page, *(make() for make in blocks)) == now, (
            "run: python -m benchmarks table --write"
        )


def in_rounds(benchmark, numbers, **variant):
    """A line of a benchmark that runs several systems in turn."""
    return report.Report(benchmark, {**variant, "rounds": 3}).line({**numbers, "others_cores": 1.5})


def test_calls_are_compared_by_round_and_the_round_with_the_median_time_is_told(tmp_path):
    def one(secs):
        verdicts = waiting.Verdicts()
        verdicts.secs, verdicts.of = {0: secs / 2, 1: secs}, {0: "ACKED", 1: "ACKED"}
        return waiting.Round(
            verdicts, {"acktree": secs, "celery": 6.0}, {"acktree": secs / 10, "celery": 0.5}
        )

    found = waiting.found([one(4.0), one(1.0), one(2.0)], calls=2)
    assert (found["secs"], found["calls_per_sec"], found["wrong"]) == (2.0, 1, [])
    assert (found["shares_of_celery"], found["share_of_celery"]) == ([1.5, 6.0, 3.0], 3.0)
    assert found["cpu_ms_per_call"] == {"acktree": 100.0, "celery": 250.0}
    line = in_rounds("waiting", found, kind="async", calls=2, ms=100.0, at_once=100)
    results.keep("waiting", line, tmp_path)
    row = table.waiting(tmp_path).splitlines()[-1]
    assert "async, 2 of 100 ms, 100 at once" in row
    assert "**3.00** (1.50 to 6.00)" in row
    assert "3, not quiet" in row


def test_starts_are_compared_by_round_without_the_first_which_may_write_the_archive(monkeypatch, tmp_path):
    asked = []

    def run(stateful, environment):
        asked.append(environment.get("ACKTREE_CLASS_ARCHIVE") == "off")
        return dict.fromkeys(start._MEASURED, 20.0 if asked[-1] else 10.0 + len(asked))

    monkeypatch.delenv("ACKTREE_CLASS_ARCHIVE")
    monkeypatch.setattr(start, "_in_process", run)
    monkeypatch.setattr(start, "_wait_for_java", lambda: None)
    line = start.in_turn(stateful=1, rounds=3)
    assert asked == [False, *[False, True] * 3]
    assert line["ratios"]["cpu_secs"] == [0.6, 0.7, 0.8]
    results.keep("start", line, tmp_path)
    assert "**0.70** (0.60 to 0.80)" in table.start(tmp_path)


def test_every_goal_compares_named_runs_by_a_known_metric():
    for goal in table.GOALS:
        assert {goal.first, goal.second} <= named.RUNS.keys()
        assert goal.metric in named.METRICS


def test_pictures_are_drawn_from_what_is_kept_and_the_same_each_time(kept, tmp_path):
    pytest.importorskip("matplotlib", reason="the group `bench` brings it")
    once, again = (pictures.draw(kept, tmp_path / name) for name in ("once", "again"))
    assert [file.name for file in once] == [
        "ratios.svg",
        "throughput.svg",
        "latency.svg",
        "acker.svg",
        "soak.svg",
    ]
    assert [file.read_bytes() for file in once] == [file.read_bytes() for file in again]
    assert pictures.draw(Path(tmp_path / "nothing"), tmp_path / "none") == []


def test_the_account_of_a_chaos_is_kept_without_its_story_and_shown_with_its_breaches(tmp_path):
    account = {"messages": 5000, "acked": 4990, "dead": 10, "findings": {}}
    line = {
        "seed": 7, "master": "local[2,4]", "strikes": {"worker": 80, "driver": 44}, "drivers": 61,
        "clean": True,
        "account": account, "duplicates": {"Spark ran the task again": 1200}, "hangs": [], "outlived": [],
        "ends": {"said, after driver jvm": 3}, "at": "2026-01-02T03", "machine": {"acktree": "abc"},
        "story": ["worker worker: killed"],
    }  # fmt: skip
    kept = chaos.worth_keeping(line)
    assert kept == {key: value for key, value in line.items() if key != "story"}
    results.keep("chaos", kept, tmp_path)
    breached = account | {"findings": {"lost": 2}}
    results.keep("chaos", kept | {"clean": False, "account": breached, "hangs": ["driver 3"]}, tmp_path)
    results.keep("chaos", kept | {"clean": False}, tmp_path)
    first, *others = faults.chaos(tmp_path).splitlines()[2:]
    assert (
        "| 80 worker, 44 driver | 61 | 5,000 | 4,990 | 10 | none | 1,200 Spark ran the task again |" in first
    )
    assert ["2 lost, 1 driver 3" in others[0], "it did not come to rest" in others[1]] == [True, True]


def test_of_a_soak_the_peaks_are_kept_and_the_ends_compared():
    samples = [{"secs": n, "open": 100 - n % 7, "acked": n} for n in range(1000)]
    kept = soak.thinned(samples, soak.POINTS)
    assert len(kept) == soak.POINTS
    assert {sample["open"] for sample in kept} == {100}
    assert [sample["secs"] for sample in kept] == list(range(9, 1000, 10))
    assert soak.thinned(samples[:3], soak.POINTS) == samples[:3]
    grew = soak.growth([{"secs": n, "open": n, "acked": n} for n in range(60)])
    assert grew == {"open": {"after_a_third": 24.5, "after_two_thirds": 44.5, "in_the_end": 54.5}}


def test_a_process_has_its_share_of_memory_and_a_role_and_one_that_is_gone_has_none():
    assert machine.processes_by_role()["driver"] == [os.getpid()]
    assert 5 < machine.pss_mb(os.getpid()) < 5000
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert machine.pss_mb(child.pid) == 0


# --- CPU ----------------------------------------------------------------------------------------------


def test_a_worker_that_ended_unheard_of_takes_nothing_away_from_what_was_spent():
    def process(parent, waited):
        return machine._Process(parent, is_java=False, own=10, waited=waited)

    before = {1: process(0, 0), 2: process(1, 0), 3: process(2, 0), 4: process(1, 0)}
    now = {1: process(0, 10), 2: process(1, 0)}
    assert machine._lost(before, now) == [3]  # 4 was waited for by 1, and is in its sum


def test_cpu_of_children_counts():
    clock = machine.Clock()
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    cost = clock.cost()
    assert cost.ours > 0
    assert cost.others >= 0


def test_children_are_measured_beside_a_function_bolt(capsys):
    children.main(["--rounds", "1", "--sentences", "40"])
    kinds = json.loads(capsys.readouterr().out)["kinds"]
    assert kinds["function"]["ratio"] == 1
    assert {"pystorm", "pystorm child, json"} <= kinds.keys()
    assert all(kind["cpu_us"] > 0 for kind in kinds.values())


def test_a_message_waits_from_the_moment_in_which_it_can_be_emitted(monkeypatch):
    now, emitted, waits = [100.0], [], latency.Waits()
    monkeypatch.setattr(latency, "perf_counter", lambda: now[0])
    spout = latency.SteadySpout(waits, rate=50)
    collector = SimpleNamespace(emit_batch=lambda _, message_ids: emitted.append((now[0], *message_ids)))
    spout.open(Config(), SimpleNamespace(), collector)
    for now[0] in (100.0, 100.0101, 100.0201, 100.0301, 100.0601):
        spout.next_tuple()
    assert emitted == [(100.0, 0), (100.0201, 1), (100.0601, 2, 3)]
    now[0] = 100.07
    spout.ack_batch([0, 3])
    assert waits.secs[0].tolist() == pytest.approx([0.07, 0.01])
