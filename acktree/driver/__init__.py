"""The driver's side of a running topology: spout threads, what micro-batches decide, the handle, shutdown.

Runs in the user's driver process. Imports neither PySpark nor anything of ``acktree.spark``.
"""
