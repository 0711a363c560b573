"""What a spout task keeps about its messages: those that are open, and when a failed one is due again.

Runs in the driver. Pure.
"""
