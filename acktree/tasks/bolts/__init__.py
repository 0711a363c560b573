"""Bolt tasks: frames in, frames out.

Runs in Python workers, and in ``LocalCluster``. Uses neither ``tasks.spouts``, files nor Spark.
"""
