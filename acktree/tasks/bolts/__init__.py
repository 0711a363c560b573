"""Bolt tasks: frames in, frames out.

Runs in Python workers, and in ``LocalCluster``. Does not know ``tasks.spouts``, files or Spark.
"""
