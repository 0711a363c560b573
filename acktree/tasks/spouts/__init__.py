"""Spout tasks: messages out, verdicts in, retries.

Runs in the driver, one thread a task. Does not know ``tasks.bolts``, files or Spark.
"""
