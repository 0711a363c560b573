"""A Python worker's process: plan, memory limit, execution marks, isolation of what kills it.

Runs in Python workers. Imports nothing of ``driver``, and of ``checkpoint`` only what reads.
"""
