"""Each recipe of the cookbook runs unchanged, in a folder of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "cookbook.md").read_text(encoding="utf-8")
RECIPES = {
    match[1]: match[2]
    for match in re.finditer(
        r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE
    )
}
ON_SPARK = [name for name, recipe in RECIPES.items() if "submit(" in recipe and "LocalCluster" not in recipe]


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Run a recipe, of which create_topology has nothing to warn."""
    monkeypatch.chdir(folder)
    exec(compile(RECIPES[name], f"cookbook: {name}", "exec"), {"__name__": "__main__"})
    assert not [each.getMessage() for each in caplog.records if each.module == "builder"]


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in ON_SPARK])
def test_a_recipe_runs_without_spark(name, tmp_path, monkeypatch, caplog):
    run(name, tmp_path, monkeypatch, caplog)


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("name", ON_SPARK)
def test_a_recipe_runs_on_spark(name, tmp_path, monkeypatch, caplog):
    run(name, tmp_path, monkeypatch, caplog)


def test_every_recipe_is_listed_and_run():
    listed = re.findall(r"^\* \[([^\]]+)\]\(#", PAGE, re.MULTILINE)
    assert listed == list(RECIPES)
    assert PAGE.count("```python") == len(RECIPES)
