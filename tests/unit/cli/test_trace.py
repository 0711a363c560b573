"""``acktree trace``: against a driver, and on a checkpoint that nobody runs."""

from __future__ import annotations

import time

import pytest

from acktree import MisuseError
from acktree.cli.main import main
from acktree.core.stats.counters import Counters
from tests.unit.cli.answers import said
from tests.unit.traces.facts import record
from tests.unit.ui.driver_without_spark import started


def asked(capsys, named):
    """All that is printed of one failed message."""
    (message,) = said(capsys, "trace", named, "--reason", "NO WORD")["messages"]
    assert (message["verdict"], message["component"]) == ("FAILED", "double")
    whole = said(capsys, "trace", named, message["root"])
    assert whole["tree"]["lines"][0]["fate"] == "failed"
    assert [each["alike"] for each in whole["tree"]["lines"]] == [1, 3]
    assert whole == said(capsys, "trace", named, "--message-id", message["message_id"])
    assert main(["trace", named, message["root"]]) == 0
    text = capsys.readouterr().out
    assert "double task" in text
    assert "x 3" in text
    assert "Traceback" in text
    assert "\x1b" not in text
    return whole


def test_a_trace_is_the_same_from_the_driver_and_from_its_checkpoint(tmp_path, capsys):
    with started(tmp_path / "cp") as topology:
        topology.fill()
        record(topology.run.traces)
        running = asked(capsys, "numbers")
        done = said(capsys, "trace", "numbers", "--rate", "0.25")
        assert done == {"done": True, "rate": 0.25, "most_per_sec": 100}
        assert topology.handle.traces.rate == 0.25
        assert topology.run.inbox.has_watch
        assert main(["trace", "numbers", "--message-id", "nowhere"]) == 1
        assert "no trace of message" in capsys.readouterr().err
        assert main(["trace", "numbers", "77"]) == 1
        capsys.readouterr()
        for rate, bound in (
            ("0.5", ", at most about 100 a second (max_traces_per_sec)"),
            ("1", ""),
            ("0", ""),
        ):
            assert main(["trace", "numbers", "--rate", rate]) == 0
            assert capsys.readouterr().out.endswith(f"{rate} of the messages are traced from now on{bound}\n")
    assert asked(capsys, str(tmp_path / "cp")) == running
    assert main(["trace", str(tmp_path / "cp"), "--rate", "1"]) == 3
    assert main(["trace", str(tmp_path / "cp"), "77"]) == 1


def test_messages_that_are_named_are_traced_from_their_next_attempt_on(tmp_path, capsys):
    """The spout emits ten messages at first, and ten more when these are acked."""
    with started(tmp_path / "cp") as topology:
        topology.fill()
        topology.handle.traces.rate = 0
        before = {each.message_id for each in topology.handle.traces.find()}
        (shown, *_) = [each["message_id"] for each in said(capsys, "open", "numbers")["open"]]
        assert {shown} < before
        ids = ["<b>12\x1b[31m", shown.replace("<b>0", "<b>13")]  # as it is emitted, as it is shown
        done = said(capsys, "trace", "numbers", "--watch", ids[0], "--watch", ids[1], "--secs", "100")
        assert done["done"]
        assert {*done["watched"]} == {*ids}
        assert all(90 < secs <= 100 for secs in done["watched"].values())
        topology.commit(Counters(), acked=10)
        end = time.monotonic() + 120
        while len(topology.handle.traces) < len(before) + 2:
            assert time.monotonic() < end
            time.sleep(0.005)
        topology.fill()
        found = {each.message_id for each in topology.handle.traces.find()}
        assert found - before == {repr(ids[0]), ids[1]}
        assert main(["trace", "numbers", "--message-id", ids[0]]) == 0
        assert ids[1].replace("13", "12") in capsys.readouterr().out
        assert main(["trace", "numbers", "--watch", "a", "--watch", "b"]) == 0
        said_of = capsys.readouterr().out
        assert "the next attempts of the 2 messages are traced, for 300 s" in said_of


def test_what_cannot_be_watched_is_said(tmp_path, capsys):
    with started(tmp_path / "cp") as topology:
        for wrong, why in (
            (["--secs", "5"], "no message is watched"),
            (["--watch", "a", "--rate", "0.5"], "two orders"),
            ([part for n in range(101) for part in ("--watch", str(n))], "101 messages would be watched"),
        ):
            assert main(["trace", "numbers", *wrong]) == 2
            error = capsys.readouterr().err
            assert why in error
            assert "fix:" in error
        assert topology.handle.traces.watched == {}
        topology.handle.traces.watch(range(100))
        assert main(["trace", "numbers", "--watch", "a"]) == 1  # the arguments are right
        assert "101 messages would be watched" in capsys.readouterr().err
    assert main(["trace", str(tmp_path / "cp"), "--watch", "a"]) == 3
    with pytest.raises(MisuseError, match="nobody runs"):
        topology.handle.traces.watch(["a"])


def test_a_message_that_is_named_twice_counts_once(tmp_path, capsys):
    with started(tmp_path / "cp"):
        again = [part for n in range(200) for part in ("--watch", f"line-{n % 100}")]
        assert len(said(capsys, "trace", "numbers", *again)["watched"]) == 100


@pytest.mark.parametrize("wrong", [["x7"], ["--rate", "2"], ["--rate", "nan"]])
def test_wrong_arguments_are_usage(wrong, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["trace", "numbers", *wrong])
    assert ended.value.code == 2
    assert "usage" in capsys.readouterr().err
