"""What runs user code, and what both processes share: plan, chunks, the acker.

Runs in workers and in the driver. Imports no PySpark and writes no files.
"""
