"""`switchcraft-train onboard` and `pool`: change an artifact's pool without retraining."""

from __future__ import annotations

import argparse
import math
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from router_service.artifact import Artifact, Manifest
from router_service.core.errors import ConfigError
from router_service.policies.costs import Price
from router_service.prices import look_up_id

_DESCRIPTION = """\
Add a model to an artifact's pool from about 100 of its answers. The other models are not trained
again, and their probabilities stay the same.

The new model is compared with the models whose answers the artifact was trained on (--data). Its
position among them predicts it on all their queries, and a small network learns these predictions.
"""

_EXAMPLE = """\
example, for a model that has not answered anything yet:
  switchcraft-train onboard ARTIFACT --choose 100 --out ask
  switchcraft-train label pool.yaml ask/rows.jsonl --out ask
  switchcraft-train onboard ARTIFACT --recording ask --arm NAME --model openai/gpt-5.2 --out NEW

--model takes the price from the list. For a model that is not listed, add --price 0.15,0.60.
To replace a model by its next version, add `--replaces OLD`.
"""

_POOL_EXAMPLE = """\
examples:
  switchcraft-train pool remove ARTIFACT ARM --out NEW
  switchcraft-train pool reprice ARTIFACT ARM --price 0.15,0.60 --out NEW
"""


def register(stages: Any) -> None:  # noqa: ANN401 - argparse has no public type for it
    """Add the commands `onboard` and `pool`."""
    onboard = stages.add_parser(
        "onboard",
        help="add a model to an artifact from about 100 answers, without retraining",
        description=_DESCRIPTION,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    onboard.add_argument("artifact", type=Path, help="the artifact's directory")
    onboard.add_argument(
        "--choose",
        type=_parse_count,
        metavar="N",
        help="choose N queries to ask the model, and write them to OUT/rows.jsonl for `label`",
    )
    onboard.add_argument(
        "--recording",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="the model's answers: a folder with the rows and answers of `label`, or a recording in"
        " the leaderboard's format; may be repeated. With --choose: answers so far",
    )
    onboard.add_argument("--arm", metavar="NAME", help="the model's name in the recording")
    onboard.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="PROVIDER/MODEL",
        help="the model's id, as in `model_list`; may be repeated. Gateways use the arm for models"
        " with these ids, and the price is the list price of the first id that is listed",
    )
    _add_price(onboard)
    onboard.add_argument(
        "--answers",
        type=_parse_count,
        default=100,
        metavar="N",
        help="how many answers to learn from; if there are more, the most informative ones and"
        " random ones are used (default: %(default)s)",
    )
    onboard.add_argument("--replaces", metavar="ARM", help="the arm whose place the model takes")
    onboard.add_argument(
        "--data",
        type=Path,
        default=Path(os.environ.get("SWITCHCRAFT_DATA", "../shared/data")),
        help="directory of the recorded answers that the artifact was trained on (default:"
        " $SWITCHCRAFT_DATA, or ../shared/data)",
    )
    onboard.add_argument(
        "--workspace", type=Path, help="directory with labels of earlier runs, which are reused"
    )
    onboard.add_argument("--out", type=Path, required=True, help="directory of the new artifact")
    onboard.set_defaults(stage=run_onboard)

    pool = stages.add_parser(
        "pool",
        help="remove an arm of an artifact, or change its price",
        description="Remove an arm of an artifact, or change its price, without retraining.",
        epilog=_POOL_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    changes = pool.add_subparsers(required=True, metavar="CHANGE")
    remove = changes.add_parser(
        "remove", help="remove an arm", description="Write a new artifact without an arm."
    )
    reprice = changes.add_parser(
        "reprice",
        help="change an arm's price",
        description="Write a new artifact with another price of an arm.",
    )
    for change in (remove, reprice):
        change.add_argument("artifact", type=Path, help="the artifact's directory")
        change.add_argument("arm", help="the arm's name")
        change.add_argument("--out", type=Path, required=True, help="directory of the new artifact")
    _add_price(reprice)
    remove.set_defaults(stage=run_remove)
    reprice.set_defaults(stage=run_reprice)


def _add_price(stage: argparse.ArgumentParser) -> None:
    stage.add_argument(
        "--price", metavar="IN,OUT", help="USD per million input tokens and output tokens"
    )
    stage.add_argument(
        "--price-per-hour", metavar="USD", help="price of the machine, instead of --price"
    )


def _parse_count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def read_price(arguments: argparse.Namespace) -> Price:
    """Return the price in the options; raises ConfigError if it is missing or not a number."""
    text = arguments.price or arguments.price_per_hour
    if not text or (arguments.price and arguments.price_per_hour):
        problem = (
            "give --price IN,OUT in USD per million tokens, or --price-per-hour USD; `onboard` can"
            " also find the price by --model PROVIDER/MODEL"
        )
        raise ConfigError("switchcraft-train", "--price", problem)
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    wanted = 2 if arguments.price else 1
    if len(values) != wanted or not all(0 <= value < math.inf for value in values):
        form = "two numbers such as 0.15,0.60" if arguments.price else "one number such as 1.20"
        raise ConfigError("switchcraft-train", "--price", f"{text!r} must be {form}")
    if arguments.price:
        return Price(input_usd_per_mtok=values[0], output_usd_per_mtok=values[1])
    return Price(usd_per_hour=values[0])


def find_price(arguments: argparse.Namespace) -> Price:
    """Return the price in the options, or else the list price of the model.

    Raises ConfigError if an option is not a number, or if there is no price.
    """
    ids: list[str] = arguments.model
    if arguments.price or arguments.price_per_hour or not ids:
        return read_price(arguments)
    now = datetime.now(UTC)
    listings = (look_up_id(each, now) for each in ids)
    price = next((each.price for each in listings if each and each.price), None)
    if price is None:
        problem = (
            f"the price list has no price of {', '.join(ids)}; give --price IN,OUT in USD per"
            " million tokens, or --price-per-hour USD"
        )
        raise ConfigError("switchcraft-train", "--model", problem)
    return price


def run_onboard(arguments: argparse.Namespace) -> int:
    """Add a model to an artifact, or choose what to ask it; return the exit status 0."""
    from switchcraft_training.onboarding.pool import (  # noqa: PLC0415
        Joining,
        check_joining,
        onboard,
    )
    from switchcraft_training.onboarding.recording import (  # noqa: PLC0415
        read_answers,
        read_recorded,
        write_choice,
    )

    choosing = arguments.choose is not None
    if arguments.arm is None and (arguments.recording or not choosing):
        raise ConfigError("switchcraft-train", "--arm", "name the model, as its recording does")
    if not (arguments.recording or choosing):
        problem = "give the folder with the model's answers; `--choose 100` chooses what to ask it"
        raise ConfigError("switchcraft-train", "--recording", problem)
    artifact = Artifact.load(arguments.artifact)
    joining = None
    if not choosing:
        joining = Joining(
            arguments.arm,
            find_price(arguments),
            arguments.answers,
            arguments.replaces,
            tuple(dict.fromkeys(arguments.model)),
        )
        check_joining(artifact.manifest, joining)
    cache = arguments.workspace and arguments.workspace / "labels"
    recorded = read_recorded(artifact, arguments.data, arguments.arm, cache)
    answers = None
    if arguments.recording:
        answers = read_answers(arguments.recording, arguments.arm, recorded)
    if joining is None or answers is None:
        count = write_choice(recorded, arguments.data, arguments.choose, arguments.out, answers)
        print(f"{count} queries in {arguments.out / 'rows.jsonl'}; ask the model these:")
        print(f"switchcraft-train label POOL.yaml {arguments.out}/rows.jsonl --out {arguments.out}")
        return 0
    manifest = onboard(artifact, recorded, answers, joining, arguments.out)
    facts = manifest.onboarded[joining.arm]
    print(
        f"{joining.arm}: {facts.answers} answers, compared with {facts.models} recorded models\n"
        f"accuracy {facts.accuracy.value:.1%} ± {facts.accuracy.stderr:.1%}"
        f" on {facts.accuracy.n:,} queries; probabilities ± {facts.probability_stderr:.3f}\n"
        f"cost {manifest.profile[joining.arm].cost_usd():.3g} USD per request"
    )
    _print_result(arguments.out, manifest)
    return 0


def run_remove(arguments: argparse.Namespace) -> int:
    """Remove an arm, and return the exit status 0."""
    from switchcraft_training.onboarding.pool import remove_arm  # noqa: PLC0415

    manifest = remove_arm(Artifact.load(arguments.artifact), arguments.arm, arguments.out)
    _print_result(arguments.out, manifest)
    return 0


def run_reprice(arguments: argparse.Namespace) -> int:
    """Change an arm's price, and return the exit status 0."""
    from switchcraft_training.onboarding.pool import reprice_arm  # noqa: PLC0415

    price = read_price(arguments)
    artifact = Artifact.load(arguments.artifact)
    _print_result(arguments.out, reprice_arm(artifact, arguments.arm, price, arguments.out))
    return 0


def _print_result(out: Path, manifest: Manifest) -> None:
    figures = "has no figures, so goals such as accuracy=best need a new `run`"
    if manifest.frontier:
        figures = f"`switchcraft policies --artifact {out}` shows its figures"
    if manifest.estimated_arms:
        arms = ", ".join(manifest.estimated_arms)
        figures += f". They are estimates, because most answers of {arms} were not recorded"
    print(f"{out}: {figures}")
