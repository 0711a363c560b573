"""Keyed state of stateful bolts, and the interface of the store below it.

Runs in workers. Pure; the caller of the level provides the store.
"""
