"""The walk-through of docs/accounts.md, which runs "spend_a_budget.py", followed literally."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from router_service.core.keys import PREFIX
from tests.drills.processes import install_programs, sandbox_gateway

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "accounts.md"
ADDRESS = "http://127.0.0.1:8080"


def commands() -> str:
    """Return the commands of the walk-through as one script."""
    section = PAGE.read_text().partition("## In five minutes\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    assert len(blocks) > 5
    return "\n".join(blocks)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Run a gateway without a configuration and with an empty database; yield its address."""
    with sandbox_gateway(tmp_path) as address:
        yield address


@pytest.mark.timeout(600)
def test_walk_through_works_as_written(url: str, tmp_path: Path) -> None:
    """Only the port, the programs' folder and the installation of a package are replaced.

    A key works, spends its budget with ever cheaper policies, is refused, rotated and revoked.
    """
    programs = install_programs(tmp_path)
    script = commands().replace(".venv/bin", str(programs)).replace(ADDRESS, url)
    environment = {name: value for name, value in os.environ.items() if "SWITCHCRAFT" not in name}
    environment |= {"XDG_STATE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=ROOT,
        env={**environment, "SWITCHCRAFT_URL": f"{url}/v1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=580,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout
    assert PREFIX not in printed, "secrets go to variables"
    _, before, after = printed.split("request 1:")
    assert re.search(r"^search +search-agent +5 +0 ", before, re.MULTILINE)
    cheaper = re.findall(r"policy default \((\S+)\), left: (\S+), expected accuracy: (\S+)", after)
    assert cheaper, "a cheaper policy comes before the refusal"
    assert [float(left) for _, left, _ in cheaper] == sorted(
        (float(left) for _, left, _ in cheaper), reverse=True
    )
    accuracies = [float(accuracy) for _, _, accuracy in cheaper]
    assert accuracies == sorted(accuracies, reverse=True)
    assert "is refused with insufficient_quota: Error code: 429" in after
    assert "The budget of the key 'search-agent' (0.002 USD in total)" in after
    assert re.findall(r"^\d{3}$", printed, re.MULTILINE) == ["200", "200", "401"]
    assert "revoked" in after
