"""Where a submit is refused because its module is only imported."""

from __future__ import annotations

import pytest

from acktree.driver.importing import importing, refuse_submit_by_import
from acktree.errors import MisuseError


def test_a_submit_is_refused_while_a_command_imports_its_module_and_not_afterwards():
    with importing("orders:topology"), pytest.raises(MisuseError, match="orders:topology submits a topology"):
        refuse_submit_by_import("orders", is_worker=False)
    refuse_submit_by_import("orders", is_worker=False)


def test_a_submit_is_refused_in_a_worker():
    with pytest.raises(MisuseError, match="a Python worker imported") as refused:
        refuse_submit_by_import("orders", is_worker=True)
    assert "if __name__ == '__main__':" in str(refused.value)
