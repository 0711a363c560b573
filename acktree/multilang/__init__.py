"""Components that speak Storm's multilang protocol: the protocol, and the hosts that run such components.

``ShellSpout`` and ``ShellBolt`` are programs in any language, which run as child processes.

The public names of acktree alone are imported here, as anybody's adapter would. Importing this package
imports no PySpark and no PyArrow.
"""

from __future__ import annotations

from acktree.multilang.shell import ShellBolt, ShellSpout, SubprocessError

__all__ = ["ShellBolt", "ShellSpout", "SubprocessError"]
