"""A failure survives every journey, with or without its exception."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.tracking.verdicts import (
    Failure,
    FailureCause,
    FailureKind,
    Verdict,
    exception_type_names,
    qualified_name,
)


class WantsMoreError(ValueError):
    """Pickles, and cannot be unpickled: its __init__ wants more than ``args`` holds."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)


class UnpicklableError(Exception):
    def __reduce__(self):
        raise RuntimeError("not me")


class TurncoatError(Exception):
    def __reduce__(self):
        return (str, ("I was an exception once",))


def failed_with(exception: BaseException | None, **changes: object) -> Failure:
    plain = Failure(
        reason=str(exception or "said so"),
        kind=FailureKind.FAILED,
        cause=FailureCause.EXCEPTION,
        component="split",
        exception=exception,
        exception_types=exception_type_names(exception),
        traceback="Traceback ...",
        attempt=1,
        final=False,
    )
    return dataclasses.replace(plain, **changes)


failures = st.builds(
    Failure,
    reason=st.text(st.characters(codec=None)),
    kind=st.sampled_from(FailureKind),
    cause=st.sampled_from(FailureCause),
    component=st.none() | st.text(),
    exception=st.none(),
    exception_types=st.lists(st.text()).map(tuple),
    traceback=st.none() | st.text(),
    attempt=st.integers(1, 2**31),
    final=st.booleans(),
    others=st.integers(0),
)


@given(failures)
def test_a_failure_arrives_as_it_left(failure):
    arrived = Failure.from_bytes(failure.to_bytes())
    assert arrived == failure
    assert isinstance(arrived.kind, FailureKind)
    assert isinstance(arrived.cause, FailureCause)


@given(failures)
def test_a_failure_can_be_read_from_a_view_of_a_larger_buffer(failure):
    packed = failure.to_bytes()
    assert Failure.from_bytes(memoryview(b"xx" + packed)[2:]) == failure


def test_an_exception_that_pickles_arrives():
    arrived = Failure.from_bytes(failed_with(ValueError("no such order", 7)).to_bytes())
    assert isinstance(arrived.exception, ValueError)
    assert arrived.exception.args == ("no such order", 7)


def test_the_notes_of_an_exception_arrive():
    exception = ValueError("no")
    exception.add_note("order 7")
    arrived = Failure.from_bytes(failed_with(exception).to_bytes())
    assert arrived.exception is not None
    assert arrived.exception.__notes__ == ["order 7"]


def test_an_exception_of_a_class_that_no_import_finds_arrives_with_its_type():
    class LocalError(Exception):
        pass

    arrived = Failure.from_bytes(failed_with(LocalError("here")).to_bytes())
    assert type(arrived.exception) is LocalError


@pytest.mark.parametrize(
    "exception",
    [
        WantsMoreError(3, "refused"),
        ValueError("refused", threading.Lock()),
        UnpicklableError("refused"),
        TurncoatError("refused"),
    ],
    ids=["cannot be unpickled", "holds a lock", "raises when pickled", "unpickles to a str"],
)
def test_an_exception_that_cannot_travel_stays_behind_and_its_words_arrive(exception):
    sent = failed_with(exception)
    arrived = Failure.from_bytes(sent.to_bytes())
    assert arrived.exception is None
    assert arrived == sent
    assert "refused" in arrived.reason
    assert arrived.exception_types[0] == qualified_name(type(exception))


def test_a_failure_survives_plain_pickle_too():
    failure = failed_with(KeyError("order"))
    assert pickle.loads(pickle.dumps(failure)) == failure


def test_the_type_names_are_nearest_first_and_say_nothing_that_is_true_of_all():
    assert exception_type_names(FileNotFoundError()) == (
        "builtins.FileNotFoundError",
        "builtins.OSError",
        "builtins.Exception",
    )
    assert exception_type_names(KeyboardInterrupt()) == ("builtins.KeyboardInterrupt",)
    assert exception_type_names(None) == ()


def test_a_nested_class_is_named_with_its_environment():
    class InnerError(Exception):
        pass

    assert qualified_name(InnerError).endswith(
        "test_a_nested_class_is_named_with_its_environment.<locals>.InnerError"
    )


def test_each_word_is_its_own_value_so_a_log_can_be_read_back():
    for words in (Verdict, FailureKind, FailureCause):
        assert all(words(str(word)) is word and word.name == word.value for word in words)


def test_the_kinds_of_failure_are_the_verdicts_that_are_not_acked():
    assert {kind.value for kind in FailureKind} == {verdict.value for verdict in Verdict} - {"ACKED"}


def test_importing_verdicts_and_retry_imports_neither_pyspark_nor_pyarrow():
    program = (
        "import sys, acktree.core.tracking.verdicts, acktree.core.spouts.retry;"
        "print({'pyspark', 'pyarrow'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_an_exception_that_is_large_stays_behind_and_its_name_travels():
    large = ValueError("x" * 100_000)
    failure = Failure(
        "why", FailureKind.FAILED, FailureCause.EXCEPTION, "b", large, exception_type_names(large), None, 1,
        final=False,
    )  # fmt: skip
    packed = failure.to_bytes()
    assert len(packed) < 1_000
    back = Failure.from_bytes(packed)
    assert back.exception is None
    assert back.exception_types[0] == "builtins.ValueError"
