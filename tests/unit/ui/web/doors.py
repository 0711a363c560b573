"""Everything that an operator can read of a topology: each command, each route, each file with numbers."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from acktree.cli.main import main

COMMANDS = (
    "list", "list --all", "show T", "stats T", "stats T --window 600", "get-errors T", "open T", "trace T",
    "events T", "set-log-level T", "dead-letters list T", "dead-letters show T 1", "health T", "doctor C",
)  # fmt: skip
"""All that ask and end by themselves; T is the topology, C its checkpoint."""
ONE = "/api/v1/topology/{id}"
OURS = "/api/acktree/v1/topologies/{id}"
STREAM = "/api/acktree/v1/stream"
ROUTES = (
    "/", "/metrics", "/api/acktree/v1/healthz", "/api/acktree/v1/readyz", STREAM, f"{STREAM}?topology={{id}}",
    "/api/acktree/v1/page", "/api/acktree/v1/snapshot", "/api/acktree/v1/topologies", OURS,
    f"{OURS}/open", f"{OURS}/history", f"{OURS}/errors", f"{OURS}/audit", f"{OURS}/dead-letters",
    f"{OURS}/dead-letters/1", f"{OURS}/traces", f"{OURS}/events", "/api/v1/cluster/summary",
    "/api/v1/cluster/configuration", "/api/v1/nimbus/summary", "/api/v1/supervisor/summary",
    "/api/v1/history/summary", "/api/v1/topology/summary", ONE, f"{ONE}/metrics", f"{ONE}/visualization",
    f"{ONE}/visualization-init", f"{ONE}/logconfig", f"{ONE}/lag", "/api/v1/owner-resources",
    "/api/v1/topology-workers/{id}",
)  # fmt: skip
"""All that are asked by GET. A stream has no end: it is read up to its first overview."""
COMPONENT_ROUTES = (f"{ONE}/component/{{component}}", f"{OURS}/components/{{component}}")


def asked_by_cli(capsys, topology: str, checkpoint: Path | str) -> dict[str, str]:
    """Command -> all that it printed, as text and with ``--json``; each ends with a code of its own."""
    said = {}
    for command in COMMANDS:
        words = [{"T": topology, "C": str(checkpoint)}.get(word, word) for word in command.split()]
        for given in (words, [*words, "--json"]):
            assert main(given) in {0, 1, 3}, given
            printed = capsys.readouterr()
            said[" ".join(given)] = printed.out + printed.err
    return said


def asked_by_rest(page, topology_id: str, components=()) -> dict[str, tuple[int, bytes]]:
    """Path -> status and body of each route."""
    paths = [route.format(id=quote(topology_id, safe="")) for route in ROUTES]
    paths += [
        route.format(id=quote(topology_id, safe=""), component=quote(component, safe=""))
        for route in COMPONENT_ROUTES
        for component in components
    ]
    answers = {path: page.beginning(path) if path.startswith(STREAM) else page.ask(path) for path in paths}
    return {path: (status, said) for path, (status, _, said) in answers.items()}
