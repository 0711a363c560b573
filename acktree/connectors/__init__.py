"""Spouts and sinks for brokers, databases and files: one module each, and at most one extra.

Spouts run in the driver, sinks in workers. They use the public names of ``acktree``,
``private_urls`` and ``arrow_arrays``, and nothing else of it: a connector of a user's own can do the same.
See ``docs/connectors.md``.
"""
