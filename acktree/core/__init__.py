"""The pure part: ids, tuples, lineage, the acker's sums, retry policy, counters.

Runs in every process. Reads no clock, draws no random number, does no input or output.
"""
