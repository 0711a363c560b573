"""The driver's side of a run: spout threads, what micro-batches decide, supervisor, handle, shutdown.

Runs in the user's driver process. Imports nothing of ``acktree.spark`` and no PySpark.
"""
