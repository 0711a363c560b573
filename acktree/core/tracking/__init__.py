"""Which messages are open, and the state of their tuple trees: lineage, sums, ledger, verdicts.

Runs in workers and in the driver. Pure; sees only ``core.ids``, ``core.packing`` and the errors.
"""
