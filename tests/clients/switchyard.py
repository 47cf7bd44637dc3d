"""NVIDIA's Switchyard as a second opinion on translation.

    pip install --target DIR nemo-switchyard==0.3.0
    PYTHONPATH=DIR:. python -m tests.clients.switchyard

runs the matrix of APIs through Switchyard, and prints the conversations that did not pass. Then it
sends the same requests through both gateways, and prints where the bodies that the upstream got
differ. docs/translation.md explains the differences.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from tests import apis
from tests.apis import UpstreamApi
from tests.clients import matrix
from tests.clients.matrix import SCRIPTS, Case, Cell, Matrix, play
from tests.providers.app import Provider
from tests.providers.gateways import names
from tests.serving import served

FORMATS: dict[UpstreamApi, str] = {
    apis.CHAT: "openai_chat",
    apis.RESPONSES: "openai_responses",
    apis.MESSAGES: "anthropic_messages",
}
CELLS = [cell for cell in matrix.CELLS if cell.upstream in FORMATS]


@contextmanager
def switchyard(upstream: str, provider: Provider) -> Iterator[Matrix]:
    """Run Switchyard's server with a route for each API of the upstream."""
    lines = ["schema_version = 1"]
    for dialect, name in names(tuple(FORMATS)).items():
        lines += [
            f"[llm_clients.{dialect}]",
            f'format = "{FORMATS[dialect]}"',
            f'base_url = "{upstream}/v1"',
            f"[targets.{dialect}]",
            'id = "scripted"',
            f'llm_client = "{dialect}"',
            f"[routes.{dialect}]",
            f'id = "{name}"',
            'type = "passthrough"',
            f'target = "{dialect}"',
        ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "routes.toml")
        path.write_text("\n".join(lines))
        with import_module("switchyard_rust.server").Server(str(path), 0) as server:
            yield Matrix(server.base_url, provider)


def sent_bodies(running: Matrix, cell: Cell) -> list[dict[str, Any]]:
    """Return what the upstream got of a conversation."""
    running.problem(cell)
    return [asked.body for asked in running.provider.asked]


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:  # noqa: ANN401 - any JSON
    """Yield the places where two bodies differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in sorted(ours.keys() | theirs.keys()):
            if name not in theirs:
                yield f"{path}.{name}: only ours, {ours[name]!r:.60}"
            elif name not in ours:
                yield f"{path}.{name}: only theirs, {theirs[name]!r:.60}"
            else:
                yield from differences(ours[name], theirs[name], f"{path}.{name}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for one, other in zip(ours, theirs, strict=True):
            yield from differences(one, other, f"{path}[]")
    elif ours != theirs:
        yield f"{path}: ours {ours!r:.60}, theirs {theirs!r:.60}"


def main() -> None:
    """Print the matrix of Switchyard, and the differences of the requests."""
    provider = Provider(play)
    with ExitStack() as stack:
        upstream = stack.enter_context(served(provider))
        theirs = stack.enter_context(switchyard(upstream, provider))
        ours = stack.enter_context(matrix.running())
        problems = {cell: theirs.problem(cell) for cell in CELLS}
        sys.stdout.write(matrix.table(problems))
        for cell, problem in problems.items():
            if problem:
                sys.stdout.write(f"{cell.id}: {problem[:200]}\n")
        found: dict[str, list[str]] = {}
        for cell in CELLS:
            if cell.stream or cell.case not in {*SCRIPTS, Case.IMAGE}:
                continue
            if cell.client is cell.upstream:
                continue
            pairs = zip(sent_bodies(ours, cell), sent_bodies(theirs, cell), strict=False)
            for one, other in pairs:
                for difference in differences(one, other):
                    line = f"{cell.client} to {cell.upstream}: {difference}"
                    found.setdefault(line, []).append(cell.case.name.lower())
        sys.stdout.write("\n")
        for line, cases in found.items():
            sys.stdout.write(f"{line} ({', '.join(dict.fromkeys(cases))})\n")


if __name__ == "__main__":
    main()
