"""``acktree trace``: against a driver, and on a checkpoint that nobody runs."""

from __future__ import annotations

import json

import pytest

from acktree.cli.main import main
from tests.unit.traces.facts import record
from tests.unit.ui.driver_without_spark import started


def said(capsys, *command):
    assert main([*command, "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


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


@pytest.mark.parametrize("wrong", [["x7"], ["--rate", "2"], ["--rate", "nan"]])
def test_wrong_arguments_are_usage(wrong, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["trace", "numbers", *wrong])
    assert ended.value.code == 2
    assert "usage" in capsys.readouterr().err
