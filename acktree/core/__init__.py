"""The rules, pure: ids, values, groupings, lineage, ledger. No clock, no chance, no I/O, no Spark."""
