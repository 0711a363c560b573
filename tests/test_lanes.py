"""The runner of the tests (``scripts/run_tests.py``), on a small tree of tests."""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from acktree.system.processes import is_alive

ROOT = Path(__file__).parents[1]
COPIED = ("conftest.py", "scripts/run_tests.py", "tests/outcomes.py", "tests/parts.toml", "tests/record.toml")
INI = """
[tool.pytest.ini_options]
testpaths = ["tests"]
addopts = ["--import-mode=importlib", "-p", "xdist.plugin", "-p", "pytest_timeout"]
markers = ["spark: on Spark", "unit: in tests/unit"]
filterwarnings = ["error"]
"""
STEADY = """
import pytest

def test_passes():
    assert True

@pytest.mark.skip(reason="no oracle (apt-get install oracle)")
def test_is_skipped():
    pass
"""
UNSTEADY = """
from pathlib import Path

def test_passes_when_it_runs_again(request):
    noted = Path(request.config.rootpath, "noted-{number}")
    is_first = not noted.exists()
    noted.touch()
    assert not is_first, "the first time"
"""
BROKEN = """
def test_never_passes():
    assert False, "each time"
"""
THREADS = """
import threading, time

let_go, raised = threading.Event(), threading.Event()

def fails():
    let_go.wait()
    raise ValueError("of an earlier test")

def test_leaves_a_thread():
    threading.Thread(target=fails, daemon=True).start()

def test_runs_while_a_thread_of_another_raises():
    [thread] = [each for each in threading.enumerate() if each.name.endswith("(fails)")]
    let_go.set()
    thread.join()

def test_starts_a_thread_that_raises():
    let_go.set()
    thread = threading.Thread(target=fails)
    thread.start()
    thread.join()
"""
EXAMPLES = """
import os

def test_more_examples_are_drawn_in_the_long_part(request):
    many = "examples" in request.config.getoption("--long")
    assert os.environ["TEST_EXAMPLES"] == ("300" if many else "25")
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ
"""
SIZED = """
import os
from pathlib import Path

def test_of_a_size(sized):
    with Path("sizes").open("a") as file:
        file.write(f"{sized(1, 2, 3)} of {os.environ['TEST_EXAMPLES']} examples\\n")
    assert "the first time" not in Path("sizes").read_text().splitlines()[-2:]
"""
LONG = """
def test_takes_an_hour(thorough):
    assert not thorough
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in COPIED:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "pyproject.toml").write_text(INI)
    (tmp_path / "tests" / "test_steady.py").write_text(STEADY)
    (tmp_path / "tests" / "chaos").mkdir()
    (tmp_path / "tests" / "chaos" / "test_chaos.py").write_text(LONG)
    return tmp_path


def environment() -> dict[str, str]:
    """Without pytest's own variables, and without plugins: they take longer to import than a run takes."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return {**own, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def run(tree: Path, *words: str, processes: int = 0) -> tuple[int, str]:
    """What the runner returns and prints; 0 processes: pytest runs the tests itself."""
    command = [sys.executable, "scripts/run_tests.py", "--lanes", "plain"]
    command += [f"--{lane}-processes={processes}" for lane in ("plain", "unit", "spark")]
    command += words
    done = subprocess.run(command, cwd=tree, env=environment(), capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


def write_unsteady(tree: Path, *numbers: int) -> None:
    for number in numbers:
        (tree / "tests" / f"test_unsteady_{number}.py").write_text(UNSTEADY.replace("{number}", str(number)))


def test_the_last_line_counts_and_the_one_before_says_what_was_not_tested(tree: Path) -> None:
    code, printed = run(tree, processes=2)
    *_, untested, _, times, last = printed.splitlines()
    assert (code, last) == (0, "1 passed, 0 failed, 1 skipped")
    assert re.fullmatch(r"ended after \d+ s: plain \d+ s; \d+ s of CPU on \d+ cores", times)
    assert untested.startswith("not tested here: no oracle (apt-get install oracle) (1); long parts chaos, ")


def test_a_test_that_fails_and_passes_alone_is_printed_with_both_outputs_and_refuses_nothing(
    tree: Path,
) -> None:
    write_unsteady(tree, 1)
    code, printed = run(tree)
    assert code == 0
    name = "tests/test_unsteady_1.py::test_passes_when_it_runs_again"
    assert f"=== UNSTEADY {name}: it failed, and passed alone" in printed
    assert "AssertionError: the first time" in printed
    assert "1 passed in" in printed
    assert printed.endswith("2 passed, 0 failed, 1 skipped\n")


def test_a_test_that_is_unsteady_for_the_second_time_is_refused(tree: Path) -> None:
    write_unsteady(tree, 1)
    name = "tests/test_unsteady_1.py::test_passes_when_it_runs_again"
    with (tree / "tests" / "record.toml").open("a") as record:
        record.write(f'\n[[unsteady]]\ntest = "{name}"\ndate = 2026-11-01\ncause = "not known"\n')
    code, printed = run(tree)
    assert code == 1
    assert f"REFUSED: {name} is in tests/record.toml already: mend it" in printed


def test_more_than_three_unsteady_tests_are_refused(tree: Path) -> None:
    write_unsteady(tree, 1, 2, 3, 4)
    code, printed = run(tree)
    assert code == 1
    assert "REFUSED: 4 tests are unsteady, more than 3" in printed
    assert printed.endswith("1 passed, 4 failed, 1 skipped\n")


def test_a_test_that_fails_twice_and_a_file_that_cannot_be_imported_fail_the_run(tree: Path) -> None:
    (tree / "tests" / "test_broken.py").write_text(BROKEN)
    code, printed = run(tree)
    assert code == 1
    assert "=== FAILED tests/test_broken.py::test_never_passes" in printed
    assert printed.endswith("1 passed, 1 failed, 1 skipped\n")
    (tree / "tests" / "test_broken.py").write_text("import there_is_no_such_module\n")
    code, printed = run(tree)
    assert code == 1
    assert "there_is_no_such_module" in printed


DEATHS = {
    "a crash": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 1),
    "pytest.exit": ("import pytest; pytest.exit('enough', returncode=0)", 2),
    "a timeout by a thread": ("import time; time.sleep(1000)", 1),
}
"""What a test does, and how many of the tests have no outcome then."""


@pytest.mark.parametrize("death", DEATHS)
def test_tests_that_did_not_run_since_their_process_ended_fail_the_run_and_are_named(
    tree: Path, death: str
) -> None:
    call, not_run = DEATHS[death]
    (tree / "tests" / "test_alone.py").write_text(
        f"""
import pytest
pytestmark = pytest.mark.spark

def test_first(): pass

@pytest.mark.timeout({1 if "timeout" in death else 0}, method="thread")
def test_dies(): {call}

def test_last(): pass
"""
    )
    code, printed = run(tree, "--lanes", "spark", processes=2)
    assert code == 1
    assert "=== FAILED lane spark: it ended with exit code " in printed
    names = [f"  tests/test_alone.py::{name}\n" for name in ("test_dies", "test_last")[-not_run:]]
    assert f"\n{not_run} of its tests did not run:\n{''.join(names)}" in printed
    assert ("FAILED tests/test_alone.py::test_dies\n" in printed) == (not_run == 1)
    assert printed.endswith("1 passed, 2 failed, 0 skipped\n")


@pytest.mark.parametrize("count", [1, 2])
def test_one_of_several_processes_that_dies_fails_the_run_and_is_not_started_anew(
    tree: Path, count: int
) -> None:
    """With a new process pytest-xdist runs the test again and again, and may wait for ever in the end."""
    (tree / "tests" / "test_dies.py").write_text(
        "import os\n\ndef test_dies(): os._exit(0)\n\ndef test_last(): pass\n"
    )
    code, printed = run(tree, processes=count)
    assert code == 1
    assert "=== FAILED tests/test_dies.py::test_dies" in printed
    assert "  tests/test_dies.py::test_last\n" in printed


def test_a_process_that_dies_at_an_import_fails_the_run(tree: Path) -> None:
    (tree / "tests" / "test_dies.py").write_text("import os; os._exit(0)\n")
    code, printed = run(tree, "--", "-k", "test", processes=1)
    assert code == 1
    assert "=== FAILED lane plain: it ended with exit code " in printed
    assert printed.endswith("0 passed, 1 failed, 0 skipped\n")


def test_an_exception_after_the_last_test_fails_the_run(tree: Path) -> None:
    (tree / "tests" / "conftest.py").write_text("def pytest_unconfigure(config): 1 / 0\n")
    code, printed = run(tree)
    assert code == 1
    assert "ZeroDivisionError" in printed
    assert printed.endswith("1 passed, 1 failed, 1 skipped\n")


def test_what_fails_while_it_is_set_up_or_torn_down_is_failed(tree: Path) -> None:
    (tree / "tests" / "test_broken.py").write_text(
        """
import pytest

@pytest.fixture
def no_set_up(): 1 / 0

@pytest.fixture
def no_tear_down():
    yield
    1 / 0

def test_is_not_set_up(no_set_up): pass

def test_is_not_torn_down(no_tear_down): pass
"""
    )
    code, printed = run(tree)
    assert code == 1
    assert printed.endswith("1 passed, 2 failed, 1 skipped\n")


def test_a_lane_that_hangs_is_ended_and_its_log_says_where(tree: Path) -> None:
    (tree / "tests" / "test_hangs.py").write_text(
        """
import threading

def waits_for_ever(): threading.Event().wait()

def test_leaves_a_thread_behind(): threading.Thread(target=waits_for_ever).start()
"""
    )
    code, printed = run(tree, "--silent-secs", "10", "--", "-n", "0")
    assert code == 1
    assert "=== FAILED lane plain: it was ended: no test ended for 10 s" in printed
    assert "in waits_for_ever" in printed
    assert printed.endswith("2 passed, 1 failed, 1 skipped\n")


def test_each_test_is_in_one_lane(tree: Path) -> None:
    (tree / "tests" / "unit").mkdir()
    (tree / "tests" / "unit" / "test_unit.py").write_text("def test_of_a_unit(): pass\n")
    (tree / "tests" / "test_on_spark.py").write_text("def test_on_spark(spark): pass\n")
    (tree / "tests" / "conftest.py").write_text("import pytest\n@pytest.fixture\ndef spark(): pass\n")
    for lanes, passed in {"unit": 1, "spark": 1, "plain": 1, "plain,unit,spark": 3}.items():
        code, printed = run(tree, "--lanes", lanes)
        assert code == 0
        assert f"\n{passed} passed, 0 failed, " in printed


def test_a_lane_without_tests_fails_the_run_unless_tests_are_chosen(tree: Path) -> None:
    code, printed = run(tree, "--lanes", "plain,spark")
    assert code == 1
    assert "=== FAILED lane spark: it has no tests" in printed
    assert printed.endswith("1 passed, 1 failed, 1 skipped\n")
    assert run(tree, "--lanes", "plain,spark", "--", "-k", "test_passes")[0] == 0
    assert run(tree, "--lanes", "plain,spark", "--", "-k", "no_such_test")[0] == 1


def test_a_test_that_passes_alone_in_a_process_that_fails_is_failed(tree: Path) -> None:
    write_unsteady(tree, 1)
    (tree / "tests" / "conftest.py").write_text(
        """
def pytest_unconfigure(config):
    if not hasattr(config, "workerinput") and not config.getoption("-m"):  # it runs alone
        1 / 0
"""
    )
    code, printed = run(tree)
    assert code == 1
    assert "=== FAILED tests/test_unsteady_1.py::test_passes_when_it_runs_again" in printed


def test_a_failure_whose_text_is_no_unicode_is_printed(tree: Path) -> None:
    (tree / "tests" / "test_broken.py").write_text(
        "def test_never_passes():\n    raise ValueError('half of a pair: \\ud800')\n"
    )
    code, printed = run(tree)
    assert (code, printed.endswith("1 passed, 1 failed, 1 skipped\n")) == (1, True)


def test_a_long_part_that_there_is_not_is_refused(tree: Path) -> None:
    code, printed = run(tree, "--", "--long=chaoss")
    assert code == 1
    assert "chaoss" in printed


def test_an_exception_of_a_thread_fails_the_test_that_started_it_and_no_neighbour(tree: Path) -> None:
    (tree / "tests" / "test_threads.py").write_text(THREADS)
    code, printed = run(tree, processes=1)
    assert code == 1
    assert [line for line in printed.splitlines() if line.startswith("FAILED ")] == [
        "FAILED tests/test_threads.py::test_starts_a_thread_that_raises"
    ]
    assert printed.endswith("3 passed, 1 failed, 1 skipped\n")


def test_a_long_part_is_run_where_it_is_asked_for(tree: Path) -> None:
    (tree / "tests" / "test_examples.py").write_text(EXAMPLES)
    assert run(tree)[1].endswith("2 passed, 0 failed, 1 skipped\n")
    assert run(tree, "--all")[1].endswith("3 passed, 0 failed, 1 skipped\n")


SIZES = {
    (): "1 of 25 examples",
    ("--changed",): "2 of 75 examples",
    ("--changed", "--record"): "3 of 300 examples",
    ("--all",): "3 of 300 examples",
    ("--parts", "simulator"): "3 of 25 examples",
    ("--parts", "page"): "1 of 25 examples",
}
"""What a test of the part *simulator* is given. Where git knows no commit, all parts have changed."""


@pytest.mark.parametrize("words", SIZES, ids=" ".join)
def test_in_ci_a_long_part_has_its_smaller_size_and_where_it_is_noted_it_is_whole(
    tree: Path, words: tuple[str, ...]
) -> None:
    (tree / "tests" / "simulator").mkdir()
    (tree / "tests" / "simulator" / "test_simulator.py").write_text(SIZED)
    printed = run(tree, "--lanes", "unit", *words, "--", "-k", "test_of_a_size")[1]
    assert (tree / "sizes").read_text().splitlines() == [SIZES[words]]
    assert ("the whole of service, simulator, " in printed) == (words == ("--changed",))


def test_a_test_that_runs_once_more_has_the_same_size(tree: Path) -> None:
    (tree / "tests" / "simulator").mkdir()
    (tree / "tests" / "simulator" / "test_simulator.py").write_text(SIZED)
    (tree / "sizes").write_text("the first time\n")
    assert "=== UNSTEADY " in run(tree, "--lanes", "unit", "--changed", "--", "-k", "test_of_a_size")[1]
    assert (tree / "sizes").read_text().splitlines()[1:] == 2 * [SIZES["--changed",]]


def test_files_have_the_order_that_is_listed(tree: Path) -> None:
    for name in ("a_last", "b_usual", "c_second", "d_first"):
        (tree / "tests" / f"test_{name}.py").write_text(
            f"def test_of_{name}():\n    with open('order', 'a') as file: file.write('{name} ')\n"
        )
    parts = tree / "tests" / "parts.toml"
    listed = 'order = ["tests/test_d_first.py", "tests/test_c", "", "tests/test_a_last.py"]\n'
    parts.write_text(listed + parts.read_text().partition("\norder = [")[2].partition("]\n")[2])
    run(tree, "--", "-k", "test_of")
    assert (tree / "order").read_text().split() == ["d_first", "c_second", "b_usual", "a_last"]


def test_a_long_part_is_run_where_its_room_has_changed_since_it_passed(tree: Path) -> None:
    def git(*words: str) -> str:
        who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
        done = subprocess.run(["git", *who, *words], cwd=tree, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit() -> None:
        git("add", ".")
        git("commit", "--quiet", "--message", "a change")

    (tree / ".gitignore").write_text("__pycache__\n.pytest_cache\n.hypothesis\n")
    git("init", "--quiet")
    commit()
    assert run(tree, "--changed")[1].endswith("2 passed, 0 failed, 1 skipped\n")  # git knows no such commit
    printed = run(tree, "--changed", "--record")[1]
    assert f"{', '.join(PARTS)} passed at {git('rev-parse', '--short', 'HEAD')}: noted in" in printed
    assert set(PARTS) == set(tomllib.loads((tree / "tests" / "record.toml").read_text())["passed"])
    assert "commit what has changed first" in run(tree, "--changed", "--record")[1]
    commit()
    assert run(tree, "--changed")[1].endswith("1 passed, 0 failed, 1 skipped\n")
    (tree / "acktree" / "driver").mkdir(parents=True)
    (tree / "acktree" / "driver" / "run.py").touch()
    commit()
    assert run(tree, "--changed")[1].endswith("2 passed, 0 failed, 1 skipped\n")


def test_a_long_part_that_fails_is_not_noted(tree: Path) -> None:
    chaos = tree / "tests" / "chaos"
    chaos.mkdir(exist_ok=True)
    (chaos / "test_chaos.py").write_text(BROKEN)
    before = tomllib.loads((tree / "tests" / "record.toml").read_text())["passed"]
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
    (tree / ".gitignore").write_text("__pycache__\n.pytest_cache\n.hypothesis\n")
    for words in (["init", "--quiet"], ["add", "."], [*who, "commit", "--quiet", "--message", "all"]):
        subprocess.run(["git", *words], cwd=tree, check=True)
    run(tree, "--parts", "chaos,page", "--record")
    passed = tomllib.loads((tree / "tests" / "record.toml").read_text())["passed"]
    assert {name for name, commit in passed.items() if commit != before[name]} == {"page"}


# --- the tests themselves -------------------------------------------------------------------------------

LIBRARIES = frozenset({"os", "shutil", "subprocess", "time"})
MAY_PATCH = re.compile(rf"setattr\(\s*[\w.]*\b({'|'.join(LIBRARIES)})\b")
"""Whether a file has to be parsed."""


def patched_libraries(file: Path) -> list[str]:
    """Where a test patches a library for its whole process: ``monkeypatch.setattr(os, ...)``."""
    return [
        f"{file.relative_to(ROOT)}:{call.lineno}"
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "setattr"
        and len(call.args) == 3
        and ast.unparse(call.args[0]).rpartition(".")[2] in LIBRARIES
    ]


def test_no_test_patches_a_library_for_its_whole_process() -> None:
    files = [file for file in sorted((ROOT / "tests").rglob("*.py")) if MAY_PATCH.search(file.read_text())]
    assert [place for file in files for place in patched_libraries(file)] == []


LISTED = tomllib.loads((ROOT / "tests" / "parts.toml").read_text())
PARTS, ORDER = LISTED["part"], LISTED["order"]


def test_what_the_order_of_files_names_is_there_once() -> None:
    assert [name for name in ORDER if not (ROOT / name).exists()] == []
    assert len(set(ORDER)) == len(ORDER)
    assert "" in ORDER, "all other files"


@pytest.mark.parametrize("name", PARTS)
def test_what_a_long_part_names_is_there(name: str) -> None:
    part = PARTS[name]
    assert set(part) <= {"tests", "more", "rooms", "ci"}
    for path in (*part.get("tests", []), *part.get("more", []), *part["rooms"]):
        file, _, test = path.partition("::")
        assert (ROOT / file).exists(), path
        assert test.partition("[")[0] in (ROOT / file).read_text() if test else True, path


@pytest.mark.parametrize("processes", [0, 1])
def test_a_runner_that_is_terminated_ends_its_lanes_and_what_their_tests_have_started(
    tree: Path, processes: int
) -> None:
    waits = """
import os, pathlib, signal, subprocess, sys

def test_waits():
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.sigwait([signal.SIGUSR1])"])
    pathlib.Path("pid").write_text(f"{os.getpid()} {child.pid}")
    signal.pause()
"""
    (tree / "tests" / "test_waits.py").write_text(waits)
    command = [sys.executable, "scripts/run_tests.py", "--lanes", "plain", f"--plain-processes={processes}"]
    with subprocess.Popen(command, cwd=tree, env=environment(), stdout=subprocess.DEVNULL) as runner:
        pid = tree / "pid"
        while not (pid.exists() and pid.read_text()):
            assert runner.poll() is None
            time.sleep(0.05)
        runner.terminate()
        assert runner.wait(60) == 128 + signal.SIGTERM
        for process in pid.read_text().split():
            while is_alive(int(process), of_others=False):
                time.sleep(0.05)
