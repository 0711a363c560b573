"""Keyed state that bolts remember, and the interface of the store below it.

Runs in workers. Pure; the store itself belongs to whoever runs the level.
"""
