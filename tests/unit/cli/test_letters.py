"""Commands for dead letters: how they are listed, found, shown and sent again."""

from __future__ import annotations

import re
import shlex
import time
from dataclasses import replace

import pytest

from acktree.checkpoint.folder import Checkpoint
from acktree.cli.dead_letters import _value
from acktree.cli.main import main
from acktree.config import Config
from acktree.dead_letters.store import DeadLetters
from tests.unit.cli.answers import said
from tests.unit.dead_letters.letters import LETTER
from tests.unit.ui.driver_without_spark import first_kept, started


def test_redrives_that_were_carried_out_wait_for_no_run(tmp_path, capsys):
    """Their order is kept until the next run looks at it."""
    with started(tmp_path / "cp") as topology:
        mine = replace(LETTER, topology="numbers", spout="source")
        topology.letters.put([replace(mine, root=root) for root in range(1, 6)])
    assert main(["dead-letters", "redrive", "numbers", "1", "2", "3", "--yes"]) == 0
    with DeadLetters(tmp_path / "cp" / "dead_letters.sqlite") as store:
        store.mark_settled([1], time.time_ns() // 1_000_000 + 5000)
        store.mark_settled([2], 7)  # before the order: it is sent again
        store.purge(ids=[3])
    capsys.readouterr()
    assert main(["dead-letters", "list", "numbers"]) == 0
    assert capsys.readouterr().out.endswith("\n1 redrive waits for the next run\n")


def test_letters_are_summed_up_by_cause_chosen_by_it_and_say_what_became_of_them(tmp_path, capsys):
    mine = replace(LETTER, topology="numbers", spout="source")
    again = replace(mine, root=9, message_id_repr="Redriven(letter_id=1)", dead_ms=2_001)
    with started(tmp_path / "cp") as topology:
        topology.letters.put([replace(mine, root=n, reason=f"no price for 'p{n}'") for n in range(3)])
        topology.letters.mark_redriven([1, 2, 3], 2_000)
        topology.letters.put([again])
        topology.letters.mark_settled([1, 2], 2_002)
        listed = said(capsys, "dead-letters", "list", "numbers")["letters"]
        assert [each["dead_again_id"] for each in listed] == [4, None, None, None]
        assert main(["dead-letters", "list", "numbers"]) == 0
        lines = capsys.readouterr().out.splitlines()
        ends = ["dead again: 4", "acked", "no verdict yet", "no departure time"]
        assert [line.rstrip().endswith(end) for line, end in zip(lines[1:5], ends, strict=True)] == [True] * 4
        assert main(["dead-letters", "summary", "numbers"]) == 0
        shown = capsys.readouterr().out
        assert re.search(r"3 +EXCEPTION +parse +ValueError +no price for \* ", shown)
        (options,) = re.findall(r"(--cause .*no price for.*)", shown)
        command = ["dead-letters", "list", "numbers", *shlex.split(options)]
        assert said(capsys, *command)["count"] == 3
        assert said(capsys, "dead-letters", "summary", "numbers", "--reason", "departure")["count"] == 1


def test_letters_are_found_by_what_people_call_their_message(tmp_path, capsys):
    mine = replace(LETTER, topology="numbers", spout="source")
    listing = ["dead-letters", "list", "numbers", "--label", "order-1"]
    with started(tmp_path / "cp") as topology:
        topology.letters.put([replace(mine, root=n, label=f"order-{n}") for n in range(1, 12)])
        assert [each["label"] for each in said(capsys, *listing)["letters"]] == ["order-1"]
        assert main(listing) == 0
        assert re.search(rf" order-1 {re.escape(mine.message_id_repr)} .*\n1 match$", capsys.readouterr().out)
        assert (
            said(capsys, "dead-letters", "redrive", "numbers", "--label", "order-2", "--yes")["redriven"] == 1
        )
        assert said(capsys, "trace", "numbers", "--label", "order-1")["messages"] == []
        first_kept(tmp_path / "cp")
    assert said(capsys, *listing)["count"] == 1
    assert main(["dead-letters", "show", "numbers", "1"]) == 0
    assert re.search(r"\nlabel +order-1\n", capsys.readouterr().out)
    assert said(capsys, "dead-letters", "summary", "numbers", "--label", "none")["count"] == 0


def test_the_numbers_of_letters_are_listed_as_they_are_taken_and_commas_are_taken_too(running, capsys):
    letter = replace(LETTER, topology="numbers", spout="source")
    running.letters.put([replace(letter, root=root) for root in range(1, 1002)])
    assert main(["dead-letters", "list", "numbers", "--after", "1000"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[0] == "1001"
    for number in ("1001", "1,001"):
        assert said(capsys, "dead-letters", "show", "numbers", number)["id"] == 1001
    for wrong in ("1,01", ",001", "10,01"):
        with pytest.raises(SystemExit, match="2"):
            main(["dead-letters", "show", "numbers", wrong])


def test_a_reason_in_the_list_is_cut_at_its_end_and_never_longer(running, capsys):
    reason = f"wrong types: ['e000130', {'x' * 200}"
    running.letters.put([replace(LETTER, topology="numbers", spout="source", reason=reason)])
    assert main(["dead-letters", "list", "numbers"]) == 0
    (shown,) = re.findall(r"wrong types.*?\.\.\.", capsys.readouterr().out)
    assert (shown[:-3] in reason, len(shown) < len(reason)) == (True, True)


def test_a_letter_shows_its_moments_as_people_read_them(with_letters, capsys):
    assert main(["dead-letters", "show", "numbers", "1"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("dead_ms")]
    assert re.fullmatch(r"dead_ms +\d+ \(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\)", line)


def test_letters_elsewhere_are_not_exported_as_none_while_it_runs(tmp_path, capsys):
    elsewhere = f"sqlite:///{tmp_path / 'letters.sqlite'}"
    with DeadLetters(elsewhere, create=True) as store:
        store.put([replace(LETTER, topology="numbers")])
    config = Config(dead_letters_url=elsewhere)
    export = ["dead-letters", "export", "numbers", str(tmp_path / "letters.jsonl")]
    with started(tmp_path / "cp", config=config):
        assert main(export) == 1
        assert "--store URL" in capsys.readouterr().err
        first_kept(tmp_path / "cp")
        assert main([*export, "--store", elsewhere]) == 0
        (tmp_path / "letters.jsonl").unlink()
    assert main(export) == 1
    assert "--store URL" in capsys.readouterr().err
    gone = f"sqlite:///{tmp_path / 'mistyped.sqlite'}"
    assert main(["dead-letters", "list", "numbers", "--store", gone]) == 1
    assert "there are no dead letters in" in capsys.readouterr().err
    assert not (tmp_path / "mistyped.sqlite").exists()


def test_a_redrive_by_filter_leaves_out_what_was_sent_before(with_letters, capsys, tmp_path):
    redrive = ["dead-letters", "redrive", "numbers", "--spout", "source", "--yes"]
    assert said(capsys, *redrive[:3], "1", "--yes")["redriven"] == 1
    with_letters.letters.mark_settled([1], 1)  # acked, or another letter that matches too
    assert main(redrive[:-1]) == 1
    refused = capsys.readouterr().err
    assert "send 3 dead letters again" in refused
    assert "left out, as sent before: 1; --redriven true chooses those" in refused
    assert said(capsys, *redrive[:3], "--all", "--yes")["redriven"] == 3
    with_letters.letters.mark_settled([2, 3, 4], 1)
    assert said(capsys, *redrive)["redriven"] == 0
    assert said(capsys, *redrive, "--redriven", "true")["redriven"] == 4
    with_letters.letters.mark_settled([1, 2, 3], 1)
    assert said(capsys, *redrive, "--settled", "true")["redriven"] == 3
    assert main(["kill", "numbers", "-w", "0"]) == 0
    assert said(capsys, *redrive)["ordered"] == 0
    assert said(capsys, *redrive[:3], "1", "--yes")["ordered"] == 1


def test_dead_letters_while_it_runs_and_when_it_is_stopped(with_letters, capsys, tmp_path):
    assert said(capsys, "dead-letters", "list", "numbers", "--limit", "2")["after"] == 2
    assert main(["dead-letters", "redrive", "numbers", "--all"]) == 1
    assert "send 4 dead letters again" in capsys.readouterr().err
    assert said(capsys, "dead-letters", "redrive", "numbers", "1", "--yes")["redriven"] == 1
    assert said(capsys, "dead-letters", "purge", "numbers", "--redriven", "true", "--yes")["purged"] == 1
    assert main(["kill", "numbers", "-w", "0"]) == 0
    assert said(capsys, "dead-letters", "redrive", "numbers", "2", "--yes")["ordered"] == 1
    assert main(["dead-letters", "redrive", "numbers", "999", "--yes"]) == 1
    assert "there is no dead letter 999" in capsys.readouterr().err
    held = Checkpoint(tmp_path / "cp")
    assert [*held.letters_to_redrive] == [2]
    held.close()
    assert main(["dead-letters", "list", "numbers"]) == 0
    assert capsys.readouterr().out.endswith("3 match\n1 redrive waits for the next run\n")
    assert said(capsys, "dead-letters", "list", "numbers")["count"] == 3
    assert said(capsys, "dead-letters", "show", "numbers", "2")["traceback"]
    store = f"sqlite:///{tmp_path / 'cp' / 'dead_letters.sqlite'}"
    assert said(capsys, "dead-letters", "show", "numbers", "2", "--store", store)["traceback"]
    file = str(tmp_path / "letters.jsonl")
    assert said(capsys, "dead-letters", "export", "numbers", file)["exported"] == 3
    assert said(capsys, "dead-letters", "purge", "numbers", "--all", "--yes")["purged"] == 3
    with DeadLetters(tmp_path / "cp" / "dead_letters.sqlite", create=True) as store:
        assert len(store) == 0


def test_bytes_of_a_letter_are_shown_as_python_shows_them():
    assert _value({"base64": "bm90IGpzb24gMTcb"}) == "b'not json 17\\x1b'"
    assert _value({"base64": "no base64!"}) == "{'base64': 'no base64!'}"
    assert _value({"base64": "AAAA", "more": 1}) == "{'base64': 'AAAA', 'more': 1}"
    assert "characters left out" in _value({"base64": "AAAA" * 5000})
