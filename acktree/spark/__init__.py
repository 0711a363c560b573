"""Hosts the tasks in one Structured Streaming query. The only room that knows PySpark."""
