"""Counters, and the statistics that users read.

Runs in workers and in the driver. Pure.
"""
