"""How hypothesis looks for counterexamples. What examples share too is in ``conftest.py`` above."""

from __future__ import annotations

import os

from hypothesis import settings

# Two busy cores are slow at times: a deadline would test the machine. CI repeats the same examples each time,
# so that a red build is the change's doing; at home each run looks at new ones.
# scripts/run_tests.py says how many: fewer in `make test`, more in `make test-all`.
COUNT = int(os.environ.get("TEST_EXAMPLES", "100"))
settings.register_profile("home", deadline=None, max_examples=COUNT)
settings.register_profile("ci", deadline=None, max_examples=COUNT, derandomize=True, print_blob=True)
settings.register_profile("long", deadline=None, max_examples=20_000, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "home")
