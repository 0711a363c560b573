"""Runs the tests in three lanes at once, and each failed test once more, alone.

    python scripts/run_tests.py             what states a guarantee
    python scripts/run_tests.py --all       the long parts, too
    python scripts/run_tests.py --changed   those long parts whose rooms have changed since they passed last,
                                            at the size of ``.ci/run``
    python scripts/run_tests.py --changed --record   the same parts, whole, and note the commit beside
                                            each that passes

``tests/parts.toml`` lists the long parts, the rooms that they test, and their size in ``.ci/run``. The lane
*spark* has the tests that need a JVM, *unit* the others of ``tests/unit``, ``tests/simulator`` and
``acktree``, *plain* what is left: much of it waits for servers and browsers, and *unit* uses the CPU
meanwhile. A test that fails, and passes when it runs once more alone, is *unsteady*: it is printed with both
outputs and refuses nothing, unless ``tests/record.toml`` lists it already or there are more than three.

Each test that pytest has collected must have an outcome: a lane whose process dies, ends by itself or hangs
fails the run, which names the tests that did not run. They count as failed, and so does a lane without tests.

The last line is ``N passed, M failed, K skipped``; the exit code is 0 if nothing failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PARTS = ROOT / "tests" / "parts.toml"
RECORD = ROOT / "tests" / "record.toml"
EXAMPLE = ROOT / "examples" / "word_count" / "word_count.py"
MOST_UNSTEADY = 3
MOST_AGAIN = 20
"""With more failures than this the change is wrong, not a test unsteady: none is run again."""
TEST_SECS = 600
SILENT_SECS = 2400
"""A lane in which no test ends for so long hangs where no timeout of a test reaches: it is ended."""
ABORT_SECS = 10
ARCHIVE_SECS = 300
TOLD_EVERY_SECS = 30.0
EXPRESSIONS = {"plain": "not spark and not unit", "unit": "unit and not spark", "spark": "spark"}
"""Which tests a lane has, by pytest's marks."""
_NO_UNITS = ("--ignore=acktree", "--ignore=tests/unit", "--ignore=tests/simulator")
_UNITS = ("-o", "testpaths=acktree tests/unit tests/simulator")
FOLDERS = {"plain": _NO_UNITS, "unit": _UNITS, "spark": _NO_UNITS}
"""Where a lane looks for its tests: to collect all of them takes longer than many a lane's tests."""
_MOST_SHOWN = 20_000
_LARGE_BYTES = 15_000_000_000
_ROOM_BYTES = 4_000_000_000
_EXAMPLES = 25, 75, 300
"""Of each rule: in ``make test``, in the part *examples* in ``.ci/run``, and in the whole part."""
_MOST_NAMED = 200
_SLOWEST = 12
_PASSED, _FAILED, _NO_TEST = 0, 1, 5  # pytest's exit codes


@dataclass
class Lane:
    """One pytest run: its process and what it has reported so far."""

    name: str
    process: subprocess.Popen[bytes]
    outcomes: Path
    log: Path
    collected: list[str] | None = None
    lines: list[dict[str, Any]] = field(default_factory=list)
    fault: str = ""
    ended_at: float = 0.0
    _read: int = 0
    _last_news: float = field(default_factory=time.monotonic)

    def news(self) -> Iterator[dict[str, Any]]:
        """The outcomes of tests that have ended since the last call."""
        if not self.outcomes.exists():
            return
        text = self.outcomes.read_text()[self._read :]
        whole = text[: text.rfind("\n") + 1]
        self._read += len(whole)
        for line in map(json.loads, whole.splitlines()):
            self._last_news = time.monotonic()
            if "collected" in line:
                self.collected = line["collected"]
            else:
                self.lines.append(line)
                yield line

    def end_if_silent(self, secs: float) -> None:
        """End the process if no test has ended for so long; its log then says where it hung."""
        if self.process.poll() is None and time.monotonic() - self._last_news > secs:
            self.fault = f"was ended: no test ended for {secs:,.0f} s"
            _end(self.process, signal.SIGABRT)  # Python writes first where each thread is (-X faulthandler)

    def judge(self, *, may_be_empty: bool) -> None:
        """Note what is wrong with the run as a whole, now that its process has ended."""
        code = self.process.returncode
        has_failed = any(line["outcome"] == "failed" for line in self.lines)
        is_usual = code in {_PASSED, _NO_TEST} or (code == _FAILED and has_failed)
        if self.fault:
            return
        if self.collected is None or self.not_run() or not is_usual:
            self.fault = f"ended with exit code {code}"
        elif not self.lines and not may_be_empty:
            self.fault = "has no tests"

    def not_run(self) -> list[str]:
        """The collected tests that have no outcome."""
        ended = {line["test"] for line in self.lines}
        return [test for test in self.collected or () if test not in ended]

    def __str__(self) -> str:
        return f"{self.name} {len(self.lines):,} of {len(self.collected or ()):,}"


def main() -> int:
    """Run the lanes; returns the exit code."""
    args = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # which ends the lanes
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] # a failure's text may be no UTF-8
    began = time.monotonic()
    parts = tomllib.loads(PARTS.read_text())["part"]
    chosen = list(parts) if args.all else _changed(parts) if args.changed else args.parts
    in_ci = args.changed and not args.record  # a part is noted as passed if all of it has passed
    long = [f"--long={','.join(chosen)}", *(["--in-ci"] if in_ci else [])]
    if args.record and _git("status", "--porcelain"):
        print("--record notes a commit: commit what has changed first")
        return 1
    with tempfile.TemporaryDirectory(
        prefix="at-",
        dir=_memory_folder(),
        ignore_cleanup_errors=True,  # what a test left may still write
    ) as folder:
        _prepare_environment(folder, _EXAMPLES[0 if "examples" not in chosen else 1 if in_ci else 2])
        lanes: list[Lane] = []
        try:
            for name in args.lanes.split(","):
                if name == "spark" and not args.rest and EXAMPLE.exists():
                    _let_java_write_its_archive()  # the lanes before it run meanwhile
                lanes.append(_started(name, Path(folder), long, args))
            outcomes = _followed(lanes, began, args.silent_secs)
        finally:
            for lane in lanes:
                _end(lane.process, signal.SIGTERM)
        for lane in lanes:
            lane.judge(may_be_empty=bool(args.rest))
        failed_once = [each for each in outcomes if each["outcome"] == "failed"]
        refused = _judged(failed_once, long, Path(folder), args)
        broken = [lane for lane in lanes if lane.fault]
        _print_broken(broken)
    _print_slowest(outcomes)
    smaller = [name for name in chosen if in_ci and "ci" in parts[name]]
    _print_untested(outcomes, [name for name in parts if name not in chosen], smaller)
    skipped = sum(each["outcome"] == "skipped" for each in outcomes)
    passed = len(outcomes) - len(refused) - skipped
    failed = len(refused) + sum(max(1, len(lane.not_run())) for lane in broken)
    _print_times(lanes, began)
    if args.record and not broken:
        failed_tests = [each["test"] for each in refused]
        _note_passed([name for name in chosen if not _has_failed(parts[name], failed_tests)])
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not outcomes else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", action="store_true", help="the long parts, too")
    parser.add_argument("--changed", action="store_true", help="the long parts of what has changed")
    parser.add_argument(
        "--parts", type=lambda names: names.split(","), default=[], help="these long parts, too"
    )
    parser.add_argument(
        "--record", action="store_true", help="note the commit beside each long part whose tests pass"
    )
    parser.add_argument("--lanes", default=",".join(EXPRESSIONS), help="which lanes (default: %(default)s)")
    parser.add_argument("--plain-processes", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--unit-processes", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--spark-processes", type=int, default=2 if _memory_bytes() > _LARGE_BYTES else 1)
    parser.add_argument(
        "--silent-secs", type=float, default=SILENT_SECS, help="for how long a lane may end no test"
    )
    parser.add_argument("rest", nargs="*", help="arguments of pytest, after --")
    return parser


def _memory_bytes() -> int:
    """The memory of this machine: a process with Spark takes about 3 GB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _memory_folder() -> str | None:
    """A folder in memory that has room for what the tests write; None if there is none.

    Most of the time of a test that restarts drivers is a disk's, which is asked for each commit.
    """
    folder = "/dev/shm"  # noqa: S108  # a private folder is made in it
    if "TMPDIR" in os.environ or not os.access(folder, os.W_OK):
        return None
    room = os.statvfs(folder)
    has_room = room.f_bavail * room.f_frsize > _ROOM_BYTES
    return folder if has_room and not room.f_flag & os.ST_NOEXEC else None


def _prepare_environment(folder: str, examples: int) -> None:
    """What the lanes inherit: where they write, and how many examples hypothesis draws of each rule."""
    os.environ["TMPDIR"] = folder
    Path(folder).chmod(0o711)  # PostgreSQL runs as another user, in a folder of its own below
    os.environ["TEST_EXAMPLES"] = str(examples)
    # Hundreds of processes import acktree: the first compiles it.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def _let_java_write_its_archive() -> None:
    """Run a topology whose JVM writes an archive of its classes: JVMs that use it take a third less CPU."""
    environment = {name: value for name, value in os.environ.items() if name != "ACKTREE_CLASS_ARCHIVE"}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="acktree-tests-") as folder:
        text = Path(folder, "text")
        text.write_text("one two two")
        command = [sys.executable, str(EXAMPLE), str(text), "--checkpoint", f"{folder}/checkpoint"]
        # The output ends when the JVM does, after it has written the archive.
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, check=False, timeout=ARCHIVE_SECS,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            printed = (error.stdout or b"").decode(errors="replace")  # bytes, with text=True too
            print(f"the first topology was ended after {ARCHIVE_SECS} s:\n{printed}")
        else:
            if done.returncode:
                print(f"the first topology ended with exit code {done.returncode}:\n{done.stdout}")
    print(
        f"the first topology, and the archive of its JVM's classes: {time.monotonic() - began:.0f} s",
        flush=True,
    )


# --- the lanes ------------------------------------------------------------------------------------------


def _started(name: str, folder: Path, long: Sequence[str], args: argparse.Namespace) -> Lane:
    """The lane, running."""
    count = getattr(args, f"{name}_processes")
    # Files in their order: the longest come first, and no process is left alone with one at the end.
    processes = ["-n", str(count), "--dist", "loadfile", "--no-loadscope-reorder"]
    processes += ["--max-worker-restart", "0"]
    log, outcomes = folder / f"{name}.log", folder / f"{name}.jsonl"
    command = [
        *_pytest(outcomes),
        *processes,
        *long,
        *FOLDERS[name],
        "-m",
        EXPRESSIONS[name],
        *args.rest,
    ]
    if name != "spark":  # a session that is shared may look after the files of an earlier test
        command += ["-o", "tmp_path_retention_policy=failed"]
    return Lane(name, _run(command, log), outcomes, log)


def _run(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )


def _pytest(outcomes: Path) -> list[str]:
    own = ["-p", "tests.outcomes", f"--outcomes={outcomes}", f"--timeout={TEST_SECS}"]
    return [sys.executable, "-X", "faulthandler", "-m", "pytest", "-q", *own]


def _followed(lanes: Sequence[Lane], began: float, silent_secs: float) -> list[dict[str, Any]]:
    """The outcomes of all tests; says on the way how far the lanes are, and each failure."""
    told = time.monotonic()
    while True:
        running = [lane for lane in lanes if lane.process.poll() is None]
        for lane in lanes:
            if lane not in running and not lane.ended_at:
                lane.ended_at = time.monotonic()
            for line in lane.news():
                if line["outcome"] == "failed":
                    print(f"FAILED {line['test']}", flush=True)
        for lane in running:
            lane.end_if_silent(silent_secs)
        if not running:
            return [line for lane in lanes for line in lane.lines]
        if time.monotonic() - told > TOLD_EVERY_SECS:
            told = time.monotonic()
            print(f"{told - began:5.0f} s  {'   '.join(map(str, lanes))}", flush=True)
        time.sleep(0.2)


def _end(process: subprocess.Popen[bytes], by: signal.Signals) -> None:
    """End a process of pytest if it runs, and all that it has started: drivers, JVMs, servers."""
    if process.poll() is not None:
        return
    process.send_signal(by)
    with suppress(subprocess.TimeoutExpired):
        process.wait(ABORT_SECS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _print_broken(lanes: Sequence[Lane]) -> None:
    """What each lane printed that did not end as it should, and which of its tests have no outcome."""
    for lane in lanes:
        print(f"\n=== FAILED lane {lane.name}: it {lane.fault}")
        print(lane.log.read_text(errors="replace")[-_MOST_SHOWN:])
        not_run = lane.not_run()
        if not_run:
            print(f"{len(not_run)} of its tests did not run:")
            print("\n".join(f"  {test}" for test in not_run[:_MOST_NAMED]))
        if len(not_run) > _MOST_NAMED:
            print(f"  and {len(not_run) - _MOST_NAMED} more")


# --- failed tests, once more ----------------------------------------------------------------------------


def _judged(
    failed: list[dict[str, Any]], long: Sequence[str], folder: Path, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """The failures that refuse the change; prints these, and the unsteady ones."""
    if len(failed) > MOST_AGAIN:
        print(f"\n{len(failed)} tests failed: none is run again")
        _print_failures("FAILED", failed)
        return failed
    again = [
        _run_alone(each, long, folder / f"again-{number}.jsonl", args.silent_secs)
        for number, each in enumerate(failed)
    ]
    still = [each for each, second in zip(failed, again, strict=True) if second["outcome"] != "passed"]
    pairs = [(a, b) for a, b in zip(failed, again, strict=True) if b["outcome"] == "passed"]
    _print_failures("FAILED", still)
    for first, second in pairs:
        print(f"\n=== UNSTEADY {first['test']}: it failed, and passed alone in {second['secs']:.1f} s")
        print(first["text"])
        print(f"--- alone:\n{second['text'] or 'passed'}")
    listed = {each["test"] for each in tomllib.loads(RECORD.read_text()).get("unsteady", [])}
    twice = [first for first, _ in pairs if first["test"] in listed]
    for each in twice:
        print(f"REFUSED: {each['test']} is in {RECORD.relative_to(ROOT)} already: mend it")
    if len(pairs) > MOST_UNSTEADY:
        print(f"REFUSED: {len(pairs)} tests are unsteady, more than {MOST_UNSTEADY}")
        return [*still, *(first for first, _ in pairs)]
    if pairs:
        print(
            f"list them in {RECORD.relative_to(ROOT)}, each with its date and cause: the next change mends it"
        )
    return [*still, *twice]


def _run_alone(
    failed: dict[str, Any], long: Sequence[str], outcomes: Path, silent_secs: float
) -> dict[str, Any]:
    """The same test in a process of its own. It passes if its process ends well, too."""
    print(f"once more, alone: {failed['test']}", flush=True)
    command = [*_pytest(outcomes), "-n", "0", *long, failed["test"]]
    log = outcomes.with_suffix(".log")
    process = _run(command, log)
    try:
        process.wait(silent_secs)
    except subprocess.TimeoutExpired:
        _end(process, signal.SIGABRT)
    lines = [json.loads(line) for line in outcomes.read_text().splitlines()] if outcomes.exists() else []
    found = next((line for line in lines if line.get("test") == failed["test"]), None)
    if found is None or process.returncode:
        found = {"test": failed["test"], "outcome": "failed", "secs": 0.0, "cpu": 0.0}
    return found | {"text": log.read_text(errors="replace")[-_MOST_SHOWN:]}


def _print_failures(title: str, failures: Sequence[dict[str, Any]]) -> None:
    for each in failures:
        print(f"\n=== {title} {each['test']}\n{each['text']}")


# --- what was not tested --------------------------------------------------------------------------------


def _print_slowest(outcomes: Sequence[Mapping[str, Any]]) -> None:
    """Where the time went: the files whose tests took most CPU time, and those that took longest."""
    for key, title in {"cpu": "most CPU time", "secs": "slowest"}.items():
        secs: Counter[str] = Counter()
        for each in outcomes:
            secs[each["test"].partition("::")[0]] += each[key]
        most = (f"{file} {round(took)} s" for file, took in secs.most_common(_SLOWEST))
        print(f"\n{title}, of {secs.total():,.0f} s: {', '.join(most)}")


def _print_times(lanes: Sequence[Lane], began: float) -> None:
    """How long each lane took: while the last one runs alone, cores may be idle."""
    each = ", ".join(f"{lane.name} {lane.ended_at - began:,.0f} s" for lane in lanes)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = f"{used.ru_utime + used.ru_stime:,.0f} s of CPU on {os.cpu_count()} cores"
    print(f"\nended after {time.monotonic() - began:,.0f} s: {each}; {cpu}")


def _print_untested(outcomes: Sequence[dict[str, Any]], parts: Sequence[str], smaller: Sequence[str]) -> None:
    """What this machine lacks and how to have it, and the parts that were left out or smaller: one line."""
    reasons = Counter(each["text"] for each in outcomes if each["outcome"] == "skipped")
    lacking = [f"{reason} ({count})" for reason, count in reasons.most_common()]
    left_out = [f"long parts {', '.join(parts)} (make test-all)"] if parts else []
    left_out += [f"the whole of {', '.join(smaller)} (make test-all)"] if smaller else []
    print("\nnot tested here: " + ("; ".join([*lacking, *left_out]) or "nothing"))


def _changed(parts: Mapping[str, Any]) -> list[str]:
    """The long parts that test what has changed since they passed, and those that never did."""
    passed = tomllib.loads(RECORD.read_text())["passed"]
    chosen = [name for name, part in parts.items() if _has_changed(part, passed.get(name, ""))]
    print(f"long parts of what has changed since they passed: {', '.join(chosen) or 'none'}", flush=True)
    return chosen


def _has_changed(part: Mapping[str, Any], since: str) -> bool:
    """Whether a file of the part, or of the rooms that it tests, is another one than in that commit."""
    files = _git("diff", "--name-only", "--no-renames", "--relative", since) if since else None
    places = tuple(part["rooms"] + part.get("tests", []))
    return files is None or any(file.startswith(places) for file in files.splitlines())


def _has_failed(part: Mapping[str, Any], failed: Sequence[str]) -> bool:
    """Whether a test of the part is among these."""
    own = tuple(part.get("tests", []) + part.get("more", []))
    return any(test.startswith(own) for test in failed)


def _note_passed(parts: Sequence[str]) -> None:
    """Write beside each part that it passed at this commit."""
    commit, text = _git("rev-parse", "--short", "HEAD"), RECORD.read_text()
    for name in parts:
        text = re.sub(rf'^{name} = ".*"$', f'{name} = "{commit}"', text, flags=re.MULTILINE)
    RECORD.write_text(text)
    print(f"{', '.join(parts)} passed at {commit}: noted in {RECORD.relative_to(ROOT)}")


def _git(*words: str) -> str | None:
    """What git prints; None if it cannot."""
    command = ["git", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return None if done.returncode else done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
