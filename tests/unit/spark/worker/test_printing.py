"""What bolts print and log in a worker arrives in whole lines that name the bolt."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from threading import Thread

from acktree.logs.log_lines import LogFormatter, Place, standing
from acktree.spark.worker import printing
from acktree.spark.worker.printing import LabelledStream, finish_lines, label, label_output


@contextmanager
def a_worker() -> Iterator[tuple[io.StringIO, io.StringIO]]:
    """A worker whose output is labelled; all is put back afterwards."""
    root = logging.getLogger()
    level, handlers, last = root.level, root.handlers[:], logging.lastResort
    root.handlers[:] = []
    root.setLevel(logging.WARNING)
    try:
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            label_output()
            label_output()
            yield out, err
    finally:
        root.handlers[:], logging.lastResort = handlers, last
        root.setLevel(level)
        label("")


def test_prints_are_whole_lines_with_component_and_task():
    with a_worker() as out:
        label("show", task=5)
        print("a", 1, end=" ")
        assert out[0].getvalue() == ""
        print("b\nc")
        print("begun", end="")
        finish_lines()
        print("engine")
        ours = "component=show task=5 | "
        assert out[0].getvalue() == f"{ours}a 1 b\n{ours}c\n{ours}begun\nengine\n"


def test_a_hook_whose_task_is_not_known_names_its_component():
    with a_worker() as out:
        label("count")
        print("x")
        assert out[0].getvalue() == "component=count | x\n"


def test_records_of_level_info_are_printed_and_those_of_spark_are_not():
    with a_worker() as out:
        label("split", task=2)
        logging.getLogger("mine").info("n=%d", 3)
        logging.getLogger("py4j.java_gateway").info("noise")
        logging.getLogger("mine").debug("no")
        line = out[1].getvalue()
        assert re.fullmatch(r"\S+ \S+ INFO mine component=split task=2 \| n=3\n", line), line


def test_the_programs_own_logging_comes_first():
    with a_worker() as out:
        own = io.StringIO()
        logging.basicConfig(stream=own, format="own %(message)s")
        logging.getLogger("mine").warning("w")
        assert (own.getvalue(), out[1].getvalue()) == ("own w\n", "")


def test_threads_do_not_mix_their_lines():
    stream = LabelledStream(io.StringIO())
    print("main", end="", file=stream)
    thread = Thread(target=lambda: print("other", file=stream))
    thread.start()
    thread.join()
    stream.finish()
    assert stream._stream.getvalue() == "other\nmain\n"
    assert stream.writable()
    assert not stream.isatty()
    assert printing._Label.text == ""


def test_a_program_finds_what_else_a_stream_of_text_has():
    written = io.BytesIO()
    stream = LabelledStream(io.TextIOWrapper(written, encoding="latin-1", errors="replace"))
    assert (stream.encoding, stream.errors) == ("latin-1", "replace")
    stream.reconfigure(line_buffering=True)
    stream.buffer.write(b"bytes\n")
    stream.buffer.flush()
    assert written.getvalue() == b"bytes\n"


def test_as_json_each_record_and_each_printed_line_is_an_object():
    with a_worker() as out:
        label_output("json")
        label("split", task=2)
        with standing(Place("words", "split", 2, 7), lambda: [5]):
            print('a\n{"b"}')
            logging.getLogger("mine").warning("two\nlines")
        label("")
        printed = [json.loads(line) for line in out[0].getvalue().splitlines()]
        (record,) = [json.loads(line) for line in out[1].getvalue().splitlines()]
        label_output()
    place = {"topology": "words", "component": "split", "task": 2, "micro_batch": 7, "root": "5"}
    assert [line["message"] for line in printed] == ["a", '{"b"}']
    assert all(line["logger"] == "stdout" and place.items() <= line.items() for line in printed)
    assert place.items() <= record.items()
    assert (record["level"], record["message"]) == ("WARNING", "two\nlines")


def test_a_line_of_a_handler_of_the_program_with_our_formatter_gets_no_label_and_what_was_begun_stays():
    with a_worker() as out:
        label("split", task=2)
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(LogFormatter("json"))
        print("begun ", end="", file=sys.stderr)
        logging.getLogger().addHandler(handler)
        logging.getLogger("mine").warning("w")
        print("and ended", file=sys.stderr)
        record, printed = out[1].getvalue().splitlines()
        assert json.loads(record)["component"] == "split"  # the label's: no place is known
        assert printed == "component=split task=2 | begun and ended"


def test_a_wrong_call_of_the_log_raises_nothing():
    with a_worker() as out:
        logging.getLogger("mine").warning("%d", "x")
        assert "Logging error" in out[1].getvalue()
