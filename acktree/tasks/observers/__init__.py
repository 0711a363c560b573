"""What observes bolt tasks: tracer, event log, users' hooks, debug.

Runs in Python workers, and in ``LocalCluster``. The engine does not import it: whoever runs a level passes
the observers in.
"""
