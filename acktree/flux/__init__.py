"""Topologies in YAML files of Storm's Flux, whose components are Python classes.

``load`` reads such a file; it needs the extra ``acktree[flux]``. Importing this package imports no YAML.

Rules of this package
---------------------
1. It imports the public names of acktree alone, as anybody's reader could.
2. A mistake in a file is a FluxError with the file and the line. Nothing of a file is ignored in silence.
3. A file names classes, which are imported and called: it is as trusted as a program.

Source: Storm's ``flux-core``.
"""

from acktree.flux.errors import FluxError
from acktree.flux.topology import load
from acktree.multilang.loaded import LoadedTopology

__all__ = ["FluxError", "LoadedTopology", "load"]
