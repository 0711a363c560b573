"""Components that speak Storm's multilang protocol: the protocol, and the hosts that run such components.

The public names of acktree alone are imported here, as anybody's adapter would. Importing this package
imports no PySpark and no PyArrow.
"""
