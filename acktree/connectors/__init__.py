"""Spouts and sinks for the brokers people run: one module and one extra each.

They use the public names of ``acktree`` alone, as a connector of anybody's would: see ``docs/connectors.md``.
"""
