from __future__ import annotations

import pickle

import pytest

from acktree import errors
from acktree.errors import (
    AcktreeError,
    ConfigError,
    ConnectorError,
    DeadLetterLimitError,
    MisuseError,
    nearest,
)

ALL = [getattr(errors, name) for name in errors.__all__ if name.endswith("Error")]


def test_an_error_reads_as_what_where_and_fix_on_three_lines() -> None:
    error = AcktreeError("it broke", "set_bolt('a', ...)", "correct it")
    assert str(error).splitlines() == ["it broke", "  where: set_bolt('a', ...)", "  fix:   correct it"]
    assert (error.what, error.where, error.fix) == ("it broke", "set_bolt('a', ...)", "correct it")


@pytest.mark.parametrize("kind", [AcktreeError, ConfigError, ConnectorError, MisuseError])
def test_users_may_leave_out_where_and_fix_which_the_text_then_leaves_out_too(
    kind: type[AcktreeError],
) -> None:
    again = pickle.loads(pickle.dumps(kind("no password")))
    assert (str(again), again.what, again.where, again.fix) == ("no password", "no password", "", "")
    assert str(kind("no password", "orders")) == "no password\n  where: orders"
    assert str(kind("no password", fix="set PASSWORD")) == "no password\n  fix:   set PASSWORD"


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_error_is_an_acktree_error_and_survives_the_pickle_from_worker_to_driver(
    kind: type[AcktreeError],
) -> None:
    again = pickle.loads(pickle.dumps(kind("what", "where", "fix")))
    assert type(again) is kind
    assert isinstance(again, AcktreeError)
    assert str(again) == "what\n  where: where\n  fix:   fix"


def test_a_connector_error_says_whether_trying_again_can_help_also_after_a_pickle() -> None:
    assert ConnectorError("what", "where", "fix").can_retry is False
    assert (
        pickle.loads(pickle.dumps(ConnectorError("what", "where", "fix", can_retry=True))).can_retry is True
    )


def test_a_limit_of_dead_letters_names_those_that_are_letters_nevertheless_also_after_a_pickle() -> None:
    assert DeadLetterLimitError("what", "where", "fix").recorded == frozenset()
    named = DeadLetterLimitError("what", "where", "fix", recorded=frozenset({7}))
    assert pickle.loads(pickle.dumps(named)).recorded == {7}


def test_the_list_of_public_names_is_sorted_and_complete() -> None:
    here = {
        name
        for name, value in vars(errors).items()
        if getattr(value, "__module__", "") == errors.__name__ and not name.startswith("_")
    }
    assert errors.__all__ == sorted(here)


def test_an_unknown_name_is_answered_with_the_likeliest_known_one_or_with_all_of_them() -> None:
    assert nearest("wrod", ["word", "count"]) == "did you mean 'word'?"
    assert nearest("zzz", ["c", "a", "b"]) == "there are 'a', 'b' and 'c'"
    assert nearest("zzz", ["a"]) == "there is only 'a'"
    assert nearest(7, []) == "there are none"
