"""The engine: ``submit``, the streaming query, and what its workers run. The only room that imports PySpark.

Runs in the driver and in Python workers; each sub-room says which.
"""
