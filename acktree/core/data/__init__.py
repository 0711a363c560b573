"""Tuples and how they travel: fields, values, hashes, groupings, frames.

Runs in workers and in the driver. Pure; may use ``core.tracking``.
"""
