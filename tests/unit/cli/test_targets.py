"""What a command runs: `submit` hands all of it to the process that it starts."""

from __future__ import annotations

from argparse import ArgumentParser

from hypothesis import given
from hypothesis import strategies as st

from acktree.cli.targets import add_target, options_of

TEXTS = st.text("ab=-_.:/ @", min_size=1, max_size=8).map(lambda text: f"x{text}")
LISTS = st.lists(TEXTS, max_size=3)


@given(
    st.fixed_dictionaries(
        {
            "target": TEXTS,
            "environment": st.none() | TEXTS,
            "name": st.none() | TEXTS,
            "options": LISTS,
            "filter": st.none() | TEXTS,
            "env_filter": st.booleans(),
            "classes": LISTS,
        }
    )
)
def test_the_process_that_submit_starts_is_given_each_option(options) -> None:
    parser = ArgumentParser()
    add_target(parser, "TARGET", "what to run")
    given_options = parser.parse_args(["x"])
    vars(given_options).update(options)
    again = parser.parse_args(options_of(given_options))
    assert {name: getattr(again, name) for name in options} == options
