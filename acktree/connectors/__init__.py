"""Spouts and sinks for brokers, databases and files: one module each, and at most one extra.

They use the public names of ``acktree``, as a connector of anybody's would, and ``private_urls``: see
``docs/connectors.md``.
"""
