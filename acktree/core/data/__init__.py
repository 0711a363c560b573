"""Tuples and how they are sent: fields, values, hashes, groupings, frames.

Runs in workers and in the driver. Pure; may use ``core.tracking``.
"""
