"""The driver's part of a run: spout threads, results of micro-batches, supervisor, handle, shutdown.

Runs in the user's driver process. Imports nothing of ``acktree.spark`` and no PySpark.
"""
