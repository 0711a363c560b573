"""What docs/monitoring asks for is there, and its alerts fire when they should."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest

pytest.importorskip("starlette")

from prometheus_client.parser import text_string_to_metric_families

from tests.services.prometheus import RULES, Prometheus

BOARD = RULES.with_name("grafana.json")
OF_SOME = {"acktree_spout_lag": {"topology", "spout", "partition"}}
"""Of spouts that report it alone."""
METRIC = re.compile(r"\b(acktree_\w+)(?:\{([^}]*)\})?")


@pytest.fixture
def promtool():
    if missing := Prometheus.missing():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)

    def run(*words, given=b""):
        done = subprocess.run(["promtool", *words], check=False, input=given, capture_output=True)
        return done.returncode, (done.stdout + done.stderr).decode()

    return run


def asked():
    """The expressions of the rules and of the board's panels."""
    rules = [line.partition("expr:")[2] for line in RULES.read_text().replace(">\n", "> ").splitlines()]
    board = json.loads(BOARD.read_text())["panels"]
    found = [*rules, RULES.read_text(), *(target["expr"] for panel in board for target in panel["targets"])]
    assert len(found) > 40
    return found


def test_promtool_accepts_the_metrics_and_the_rules(frozen_page, promtool):
    assert promtool("check", "metrics", given=frozen_page.ask("/metrics")[2]) == (0, "")
    code, said = promtool("check", "rules", str(RULES))
    assert (code, "SUCCESS" in said) == (0, True), said


def test_rules_and_board_name_metrics_labels_and_values_that_a_scrape_has(frozen_page):
    labels, values = {name: set(each) for name, each in OF_SOME.items()}, {}
    for family in text_string_to_metric_families(frozen_page.ask("/metrics")[2].decode()):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
            for label, value in sample.labels.items():
                values.setdefault((sample.name, label), set()).add(value)
    for expression in asked():
        for name, matchers in METRIC.findall(expression):
            assert name in labels
            for label, how, wanted in re.findall(r'(\w+) ?(=~|!=|=|!~) ?"([^"]*)"', matchers):
                assert label in labels[name], (name, label)
                if wanted not in ("$topology", "__gate/.*"):  # this topology has no gates
                    assert set(wanted.split("|")) & values[name, label], (name, label, how, wanted)


def test_each_panel_has_a_place_of_its_own():
    panels = json.loads(BOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
    assert all(target["expr"] and target["legendFormat"] for panel in panels for target in panel["targets"])


FIRING = {
    "AcktreeFailures": {
        'acktree_messages_failed_total{topology="t", spout="s", stream="default"}': "0+6x60",
        'acktree_messages_acked_total{topology="t", spout="s", stream="default"}': "0+100x60",
    },
    "AcktreeNothingAcked": {
        'acktree_messages_failed_total{topology="t", spout="s", stream="default"}': "0+6x60",
        'acktree_messages_timed_out_total{topology="t", spout="s", stream="default"}': "0x60",
        'acktree_messages_acked_total{topology="t", spout="s", stream="default"}': "5x60",
    },
    "AcktreeRedrivenNotSettled": {
        'acktree_dead_letters{topology="t", state="redriven"}': "3x60",
        'acktree_messages_open{topology="t", spout="s"}': "0x60",
    },
    "AcktreeRetries": {
        'acktree_messages_retried_total{topology="t", spout="s", stream="default"}': "0+11x60",
        'acktree_messages_acked_total{topology="t", spout="s", stream="default"}': "0+100x60",
    },
    "AcktreeGivesUp": {
        'acktree_all_time_messages_total{topology="t", spout="s", what="dead_lettered"}': "0+1x60",
    },
    "AcktreeStandsStill": {
        'acktree_messages_open{topology="t", spout="s"}': "3x60",
        'acktree_micro_batches_total{topology="t"}': "7x60",
        'acktree_topology_status{topology="t", status="ACTIVE"}': "1x60",
    },
    "AcktreeTimeoutsWait": {'acktree_acker_next_deadline_seconds{topology="t"}': "-61x60"},
    "AcktreeMessageOld": {'acktree_message_oldest_open_seconds{topology="t", spout="s"}': "3601x60"},
    "AcktreeHeldTuples": {'acktree_tuple_oldest_held_seconds{topology="t", bolt="b", task="1"}': "3601x60"},
    "AcktreeLateAcks": {
        'acktree_acker_late_total{topology="t"}': "0+2x60",
        'acktree_acker_inits_total{topology="t"}': "0+100x60",
    },
    "AcktreeSpoutHeldBack": {
        'acktree_spout_not_asked_seconds_total{topology="t", spout="s", reason="inbox_full"}': "0+59x60",
    },
    "AcktreeMicroBatchesSlow": {
        'acktree_micro_batch_duration_seconds_bucket{topology="t", le="60.5"}': "0+1x60",
        'acktree_micro_batch_duration_seconds_bucket{topology="t", le="134"}': "0+10x60",
        'acktree_micro_batch_duration_seconds_bucket{topology="t", le="+Inf"}': "0+10x60",
    },
    "AcktreeCommitSlow": {
        'acktree_micro_batch_phase_seconds_total{topology="t", phase="commit"}': "0+15x60",
        'acktree_micro_batch_phase_seconds_total{topology="t", phase="walCommit"}': "0+6x60",
        'acktree_micro_batches_total{topology="t"}': "0+10x60",
    },
    "AcktreeExecuteSlow": {
        'acktree_execute_latency_seconds_bucket{topology="t", component="b", le="30"}': "0+10x60",
        'acktree_execute_latency_seconds_bucket{topology="t", component="b", le="+Inf"}': "0+11x60",
        'acktree_execute_latency_seconds_bucket{topology="t", component="b", le="60"}': "0+11x60",
    },
    "AcktreeWorkersLost": {'acktree_worker_deaths_total{topology="t"}': "0+1x60"},
    "AcktreeLosesNumbers": {'acktree_metrics_consumer_dropped_total{topology="t"}': "0+1x60"},
}
"""What makes a rule fire, a value each minute."""


def test_alerts_fire_for_what_they_are_for_and_not_without_it(tmp_path, promtool):
    """By Prometheus' own evaluation of the rules, after an hour."""
    tests = [
        {
            "interval": "1m",
            "input_series": [
                {"series": name, "values": values if is_there else "0x60"} for name, values in series.items()
            ],
            "promql_expr_test": [
                {
                    "expr": f'count by (topology) (ALERTS{{alertname="{alert}", alertstate="firing"}})',
                    "eval_time": "59m",
                    "exp_samples": [{"labels": '{topology="t"}', "value": 1}] if is_there else [],
                }
            ],
        }
        for alert, series in FIRING.items()
        for is_there in (True, False)
    ]
    file = tmp_path / "tests.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "tests": tests}))  # JSON is YAML
    code, said = promtool("test", "rules", str(file))
    assert (code, "SUCCESS" in said) == (0, True), said
