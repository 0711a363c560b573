"""What bolts print and log in a worker arrives in whole lines that name the bolt."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from threading import Thread

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
        assert out[1].getvalue() == "component=split task=2 | INFO mine: n=3\n"


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
