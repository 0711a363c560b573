"""How hypothesis looks for counterexamples. What examples share too is in ``conftest.py`` above."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Two busy cores are slow at times: a deadline for an example, or for drawing it, would test the machine.
# CI repeats the same examples each time, so that a red build is the change's doing; at home each run looks
# at new ones.
# scripts/run_tests.py says how many: fewer in `make test`, more in `make test-all`.
COUNT = int(os.environ.get("TEST_EXAMPLES", "100"))
usual = settings(deadline=None, max_examples=COUNT, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("home", usual)
settings.register_profile("ci", usual, derandomize=True, print_blob=True)
settings.register_profile("long", usual, max_examples=20_000, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "home")
