"""Whatever a file contains, the reader returns plain values or raises one error of one line."""

from __future__ import annotations

import datetime as dt
import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree import flux
from acktree.flux import FluxError
from acktree.flux.reader import MOST_BYTES, read_yaml
from acktree.flux.substitution import substitute

yaml = pytest.importorskip("yaml")

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=9), st.dates()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


def read(text):
    return read_yaml(substitute(text, {}), "x.yaml")


@given(VALUES)
def test_what_is_written_as_yaml_is_read_as_by_its_own_loader(value):
    text = yaml.safe_dump(value, allow_unicode=True)
    assert read(text).plain() == yaml.safe_load(text)  # not ``value``: PyYAML itself loses a NEL at an end


@given(st.text("ab:-?[]{}&*!|>'\"%@`#<~ \t\n\r\x00\ud7ff1.0", max_size=60))
def test_any_text_gives_plain_values_or_one_line_with_the_line(text):
    error = None
    try:
        value = read(text).plain()
    except FluxError as caught:
        error = caught
    if error is None:
        assert only_plain(value)
        return
    assert str(error).isprintable()
    assert 1 <= error.line <= text.count("\n") + text.count("\r") + 1
    assert str(error).startswith(f"x.yaml:{error.line}: ")


def only_plain(value):
    if isinstance(value, dict):
        return all(only_plain(key) and only_plain(each) for key, each in value.items())
    if isinstance(value, list):
        return all(map(only_plain, value))
    return value is None or type(value) in (bool, int, float, str, dt.date, dt.datetime)


LAUGHS = "a0: &a0 [x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
HOSTILE = {
    "a tag of Python": ("name: x\nconfig: !!python/object/apply:os.system [id]\n", 2, "tag"),
    "a tag of its own": ("name: !thing x\n", 1, "tag !thing"),
    "a set": ("config: !!set {a, b}\n", 1, "tag !!set"),
    "binary": ("name: !!binary aGk=\n", 1, "tag !!binary"),
    "a billion laughs": (LAUGHS, None, "values"),
    "a value in itself": ("config: &a [*a]\n", 1, "contains itself"),
    "deep lists": ("name: x\nconfig: " + "[" * 5_000, 2, "nested"),
    "deep maps": ("\n".join(" " * n + "a:" for n in range(100)), None, "nested"),
    "a key twice": ("name: a\nconfig: {}\nname: b\n", 3, "'name' stands twice"),
    "a key twice, deep": ("config:\n  a: 1\n  a: 2\n", 3, "'a' stands twice"),
    "an id twice": ("spouts:\n- {id: a, className: x}\n- {id: a, className: x}\n", 3, "id 'a'"),
    "an unknown alias": ("name: *b\n", 1, "undefined alias"),
    "two documents": ("name: a\n---\nname: b\n", 2, "document"),
    "no YAML": ("name: 'a\n", 2, "not valid YAML"),
    "a control character": ("name: a\nconfig: \x01\n", 2, "character"),
    "no map": ("- a\n", 1, "the file is a list"),
    "a key that is a list": ("name: a\n[a]: b\n", 2, "a key is a list"),
    "a key that is a number": ("1: a\n", 1, "key 1 of the file"),
    "an unknown key": ("name: a\nspuots: []\n", 2, "did you mean 'spouts'?"),
    "a date that is none": ("name: 2020-99-99\n", 1, "not a valid value"),
    "a number of a million digits": ("config: {a: " + "9" * 100_000 + "}\n", 1, "not a valid value"),
    "too large": ("#" * (MOST_BYTES + 1), 1, "bytes"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_one_line_with_file_and_line(kind, tmp_path):
    text, line, words = HOSTILE[kind]
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(FluxError) as caught:
        flux.load(file)
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.file == str(file)
    assert words in str(caught.value)
    assert line in (None, caught.value.line)
    assert str(caught.value).startswith(f"{file}:{caught.value.line}: ")


def including(folder, name, *, resource=False):
    file = folder / "main.yaml"
    file.write_text(f'name: a\nincludes:\n- {{file: "{name}", resource: {str(resource).lower()}}}\n')
    return file


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize(
    "name", ["../secret.yaml", "sub/../../secret.yaml", "link.yaml", "/etc/passwd", "a\0b"]
)
def test_a_path_out_of_the_folder_is_refused(name, resource, tmp_path, monkeypatch):
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    (tmp_path / "secret.yaml").write_text("name: secret\n")
    (inside / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    with pytest.raises(FluxError) as caught:
        flux.load(including(inside, name.replace("\0", "\\0"), resource=resource))
    assert caught.value.line == 3
    assert "secret: " not in str(caught.value)


def test_a_file_that_includes_itself_and_a_circle_of_two_are_refused(tmp_path):
    with pytest.raises(FluxError, match=r"main.yaml:3: .*circle"):
        flux.load(including(tmp_path, "main.yaml"))
    (tmp_path / "b.yaml").write_text("includes: [{file: main.yaml}]\n")
    with pytest.raises(FluxError, match=r"b.yaml:1: .*circle"):
        flux.load(including(tmp_path, "b.yaml"))


def test_a_pipe_and_a_folder_are_no_files(tmp_path):
    os.mkfifo(tmp_path / "x.yaml")
    for path in (tmp_path / "x.yaml", tmp_path):
        with pytest.raises(FluxError, match="not a plain file"):
            flux.load(path)


def test_numbers_and_texts_are_those_of_yaml_1_1():
    value = read("{a: yes, b: 0x10, c: 1e3, d: 1.5, e: ~, f: .inf, g: 'yes', h: !!str 5}").plain()
    assert value == {"a": True, "b": 16, "c": "1e3", "d": 1.5, "e": None, "f": math.inf, "g": "yes", "h": "5"}


def test_an_alias_and_a_merged_map_are_read():
    value = read("base: &b {a: 1, b: 2}\nmore: {<<: *b, b: 3}\nsame: *b\n").plain()
    assert value == {"base": {"a": 1, "b": 2}, "more": {"a": 1, "b": 3}, "same": {"a": 1, "b": 2}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: a\nbolts:\n- {id: b}\n", "has no className"),
        ("name: a\nincludes:\n- {resource: true}\n", "names no file"),
    ],
)
def test_a_bean_without_a_class_and_an_include_without_a_file_are_refused(text, words, tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(FluxError, match=words) as caught:
        flux.load(file)
    assert caught.value.line == 3
