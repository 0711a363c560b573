"""Traces: the paths of some messages through a topology, recorded and searched; and the event log.

The driver writes; commands and the page read, from other processes.

It may not hold up a micro-batch or a spout: what is given to the recorder is written by a thread of its own.
"""
