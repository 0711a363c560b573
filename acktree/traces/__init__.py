"""Traces: the paths of some messages through a topology, recorded and searched. Runs in the driver.

It may not hold up a micro-batch or a spout: what is given to the recorder is written by a thread of its own.
"""
