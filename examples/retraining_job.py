"""Retrain from a gateway's decision log, and publish the result if it is good enough.

    python examples/retraining_job.py CONFIG.yaml LOG --work DIR --publish-to PUBLICATION

CONFIG is a configuration of `switchcraft-train run` whose source is the log. Run the job from cron
or as a Kubernetes CronJob. A running gateway with `router.publication: PUBLICATION` loads the
release without a restart, and rolls it back if errors or cost rise.
"""

import argparse
import json
import sys
from pathlib import Path

from switchcraft_training.cli import main

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("config", type=Path)
parser.add_argument("log", type=Path, help="folder of the decision log (decision_log.path)")
parser.add_argument("--work", type=Path, default=Path("retraining"))
parser.add_argument("--publish-to", required=True, help="directory of router.publication")
parser.add_argument("--share", type=float, default=0.1, help="share of traffic for the canary")
arguments = parser.parse_args()


work = str(arguments.work)
if main(["run", str(arguments.config), "--data", str(arguments.log), "--out", work]) != 0:
    sys.exit("Training failed; nothing was published.")
report = json.loads((arguments.work / "report.json").read_text())
manifest = json.loads((arguments.work / "artifact" / "manifest.json").read_text())
router, best = (manifest["metrics"][f"{name}_accuracy"] for name in ("default", "best_single"))
print(f"router {router['value']:.3f} ± {router['stderr']:.3f}, best model {best['value']:.3f}")
if router["value"] < best["value"] - 2 * router["stderr"]:
    sys.exit("The new router is less accurate than the best single model; nothing was published.")
artifact, share = str(arguments.work / "artifact"), str(arguments.share)
sys.exit(
    main(["publish", artifact, "--to", arguments.publish_to, "--as", "canary", "--share", share])
)
