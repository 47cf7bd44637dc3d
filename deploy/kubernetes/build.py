"""Writes `prometheusrule.yaml` from the one source of all rules, `../prometheus/rules.yaml`.

Run it where those have changed: `python deploy/kubernetes/build.py`.
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
RULES = HERE.parent / "prometheus" / "rules.yaml"
HEAD = """\
# Written by build.py; the rules themselves, and why they are so, are in ../prometheus/rules.yaml.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: switchcraft
  labels: {app.kubernetes.io/name: switchcraft}
spec:
"""


def resource(rules: str) -> str:
    """Return the operator's resource with the text of the rules in it."""
    lines = rules[rules.index("groups:") :].splitlines()
    return HEAD + "".join(f"  {line}".rstrip() + "\n" for line in lines)


if __name__ == "__main__":
    (HERE / "prometheusrule.yaml").write_text(resource(RULES.read_text()))
