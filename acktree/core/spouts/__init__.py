"""The state of a spout task: its open messages, and when a failed one is emitted again.

Runs in the driver. Pure.
"""
