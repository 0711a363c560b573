"""What is durable: the checkpoint's folder, inbox, journal, the acker's log, and the same at a URL.

Runs in the driver; workers only read. Imports no PySpark and runs no user code.
"""
