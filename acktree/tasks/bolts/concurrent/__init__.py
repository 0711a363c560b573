"""Calls of ``execute`` that run at once: coroutines and threads."""
