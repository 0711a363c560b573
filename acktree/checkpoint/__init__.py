"""What is durable: the checkpoint's folder, inbox, journal, the acker's log, and the same at a URL.

Runs in the driver. Workers read; the process of the source also notes what it took. ``rebalance`` and other
commands run on a stopped one. Imports no PySpark and runs no user code.
"""
