"""Runs user code on frames: bolts, spouts and the acker, as tasks. No Spark, no clock of its own."""
