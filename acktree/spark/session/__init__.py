"""The Spark session: settings, the JVM's start, shipping code to executors.

Runs in the driver, before the query starts. Knows nothing of topologies.
"""
