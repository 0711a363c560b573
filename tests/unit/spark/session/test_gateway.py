import subprocess
import sys
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")
from pyspark import SparkConf

from acktree.spark.session import gateway
from acktree.spark.session.gateway import _pass_on, worth_reading


def test_sparks_routine_messages_are_left_out_and_all_other_lines_are_passed_on_in_order():
    said = [
        "WARNING: Using incubator modules: jdk.incubator.vector\n",
        "Starting Streaming TransformWithStateInPandas Python worker.\n",
        "\n",
        "hello from a bolt\n",
        "\n",
        "26/11/21 12:00:00 WARN NativeCodeLoader: Unable to load native-hadoop library\n",
        "26/11/21 12:00:00 ERROR Executor: out of memory\n",
    ]
    assert list(worth_reading(said)) == [said[3], said[4], said[6]]


def test_an_idle_worker_that_finds_its_pipe_closed_says_nothing_but_any_other_traceback_is_whole():
    idle = [
        "Traceback (most recent call last):\n",
        '  File "site-packages/pyspark/python/lib/pyspark.zip/pyspark/daemon.py", line 264, in manager\n',
        "BrokenPipeError: [Errno 32] Broken pipe\n",
    ]
    other = [idle[0], '  File "topology.py", line 3, in execute\n', "    send()\n", idle[2]]
    assert list(worth_reading([*idle, *other, "after\n"])) == [*other, "after\n"]


RESET = """
Traceback (most recent call last):
  File "/site-packages/pyspark/sql/streaming/python_streaming_source_runner.py", line 265, in main
    func_id = read_int(infile)
              ^^^^^^^^^^^^^^^^
  File "/site-packages/pyspark/serializers.py", line 602, in read_int
    length = stream.read(4)
             ^^^^^^^^^^^^^^
  File "/lib/python3.11/socket.py", line 706, in readinto
    return self._sock.recv_into(b)
           ^^^^^^^^^^^^^^^^^^^^^^^
ConnectionResetError: [Errno 104] Connection reset by peer

During handling of the above exception, another exception occurred:

"""
CLOSED = """Traceback (most recent call last):
  File "/site-packages/pyspark/sql/streaming/python_streaming_source_runner.py", line 302, in main
    outfile.flush()
BrokenPipeError: [Errno 32] Broken pipe
"""


@pytest.mark.parametrize("ended", [CLOSED, CLOSED.splitlines(keepends=True)[0], ""])
def test_the_inboxs_reader_that_finds_its_socket_reset_says_nothing_however_far_it_comes(ended):
    lines = [*(RESET + ended).splitlines(keepends=True), "said by a bolt\n", "\n", "and more\n"]
    assert list(worth_reading(lines))[1:] == ["said by a bolt\n", "\n", "and more\n"]


NO_SOCKET = """Traceback (most recent call last):
  File "/site-packages/pyspark/util.py", line 822, in local_connect_and_auth
    sock.connect(sock_path)
FileNotFoundError: [Errno 2] No such file or directory

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "/site-packages/pyspark/sql/streaming/python_streaming_source_runner.py", line 313, in <module>
    with get_sock_file_to_executor(timeout=None) as sock_file:
  File "/lib/python3.11/contextlib.py", line 137, in __enter__
    return next(self.gen)
  File "/site-packages/pyspark/worker_util.py", line 246, in get_sock_file_to_executor
    sock_file, sock = local_connect_and_auth(conn_info, auth_secret)
pyspark.errors.exceptions.base.PySparkRuntimeError: [CANNOT_OPEN_SOCKET] Can not open socket: tried to connect
"""


def test_a_reader_of_the_inbox_that_begins_when_its_jvm_has_ended_says_nothing():
    assert list(worth_reading([*NO_SOCKET.splitlines(keepends=True), "after\n"])) == ["after\n"]


def test_what_user_code_raises_after_a_reset_is_said():
    mine = ["Traceback (most recent call last):\n", '  File "topology.py", line 3\n', "ValueError: no\n"]
    assert list(worth_reading([*RESET.splitlines(keepends=True), *mine]))[1:] == mine


def test_a_chain_of_other_tracebacks_is_whole():
    chain = [
        "Traceback (most recent call last):\n", '  File "topology.py", line 3\n', "BrokenPipeError: no\n",
        "\n", "During handling of the above exception, another exception occurred:\n", "\n",
        "Traceback (most recent call last):\n", '  File "topology.py", line 5\n', "ValueError: no\n",
    ]  # fmt: skip
    assert list(worth_reading(chain)) == chain


def test_a_traceback_that_is_cut_off_is_not_kept_back():
    cut = ["Traceback (most recent call last):\n", '  File "x.py", line 1\n']
    assert list(worth_reading(cut)) == cut


def test_the_first_line_of_a_traceback_of_an_ended_process_is_left_out():
    head = "Traceback (most recent call last):\n"
    whole = [head, '  File "x.py", line 1\n', "ValueError: no\n"]
    phrase = 'Setting Spark log level to "ERROR".\n'
    assert list(worth_reading([head, phrase, "said\n", head, *whole, head])) == ["said\n", *whole]


@pytest.mark.parametrize(
    "error", [BrokenPipeError(32, "Broken pipe"), ValueError("I/O operation on closed file")]
)
def test_the_jvms_output_is_read_also_when_our_stderr_is_closed(monkeypatch, error):
    class Deaf:
        def write(self, line):
            raise error

    monkeypatch.setattr(sys, "stderr", Deaf())
    lines = iter(["one\n", "two\n", "three\n"])
    _pass_on(lines)
    assert list(lines) == []  # what is not read fills the pipe, and the JVM waits for ever


def test_what_a_running_jvm_prints_is_passed_on_and_its_pipe_is_closed_here(monkeypatch, capfd):
    def launch_gateway(conf, options):
        program = [sys.executable, "-c", "import sys; sys.stderr.write('from a bolt\\n')"]
        return SimpleNamespace(proc=subprocess.Popen(program, stderr=options["stderr"]))

    monkeypatch.setattr("pyspark.java_gateway.launch_gateway", launch_gateway)
    monkeypatch.setattr(gateway, "refuse_missing_java", lambda: None)
    monkeypatch.setattr(gateway, "lent_home", lambda: nullcontext(None))
    before = threading.enumerate()
    started = gateway.launch(SparkConf(loadDefaults=False))
    for thread in set(threading.enumerate()).difference(before):
        thread.join(120)
        assert not thread.is_alive(), "it reads to the end only if nobody here can write"
    started.proc.stderr.close()
    assert started.proc.wait() == 0
    assert "from a bolt\n" in capfd.readouterr().err


MUTED = """
import sys
from threading import Event
from pyspark import SparkContext
from acktree.spark.session.gateway import _readers, mute_stderr
from acktree.spark.session.settings import lend_session

def prints(text):
    SparkContext._gateway.jvm.System.err.println(text)

class Stderr:
    passed_on = Event()

    def write(self, text):
        sys.__stderr__.write(text)
        self.passed_on.set()

    def flush(self):
        sys.__stderr__.flush()

sys.stderr = Stderr()

session, give_back = lend_session("first")
_, give_back_too = lend_session("second")
mute_stderr()
prints("task stopped")
give_back()
prints("from a bolt of the second")
assert Stderr.passed_on.wait(60)
mute_stderr()
prints("task stopped")
give_back_too()
prints("from a later session in this JVM")
SparkContext._gateway.proc.stdin.close()
_readers[0].join()
"""


def test_what_is_printed_after_a_topology_was_stopped_at_once_is_shown_and_not_what_came_before():
    done = subprocess.run([sys.executable, "-c", MUTED], capture_output=True, text=True, check=True)
    said = done.stderr.splitlines()
    assert said == ["from a bolt of the second", "from a later session in this JVM"]
