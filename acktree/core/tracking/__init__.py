"""Who is open and what is still owed: lineage, sums, ledger, verdicts.

Runs in workers and in the driver. Pure; sees only ``core.ids``, ``core.packing`` and the errors.
"""
