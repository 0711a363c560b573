"""Counters, and the statistics that people read.

Runs in workers and in the driver. Pure.
"""
