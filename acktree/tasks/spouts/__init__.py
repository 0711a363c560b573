"""Spout tasks: messages out, verdicts in, retries.

Runs in the driver, one thread a task. Uses neither ``tasks.bolts``, files nor Spark.
"""
