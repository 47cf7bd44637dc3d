"""`switchcraft-train onboard` and `pool`: change an artifact's pool without retraining."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from cyclopts import App, Parameter

from router_service.command_line import Count
from router_service.core.errors import ConfigError
from switchcraft_training.options import ARTIFACTS, Data

if TYPE_CHECKING:
    from router_service.artifact import Manifest
    from router_service.policies.costs import Price

PriceOption: TypeAlias = Annotated[
    str | None,
    Parameter("--price", metavar="IN,OUT", help="USD per million input tokens and output tokens"),
]
HourlyPrice: TypeAlias = Annotated[
    str | None,
    Parameter("--price-per-hour", metavar="USD", help="price of the machine, instead of --price"),
]


def onboard(
    artifact: Path,
    /,
    *,
    choose: Count | None = None,
    recording: Annotated[Sequence[Path], Parameter(metavar="DIR")] = (),
    arm: Annotated[str | None, Parameter(metavar="NAME")] = None,
    model: Annotated[Sequence[str], Parameter(metavar="PROVIDER/MODEL")] = (),
    price: PriceOption = None,
    price_per_hour: HourlyPrice = None,
    answers: Count = 100,
    replaces: Annotated[str | None, Parameter(metavar="ARM")] = None,
    data: Annotated[
        Data | None,
        Parameter(
            help="directory with the source that the artifact was trained on, for its queries"
            " (default: those of the installed `bfcl-eval`, which is downloaded if it is missing)"
        ),
    ] = None,
    out: Path,
) -> None:
    r"""Add a model to an artifact from about 100 answers, without retraining.

    The other models are not trained again, and their probabilities stay the same. The new model is
    compared with the models whose labels are in the artifact. Its position among them predicts it
    on all queries, and a small network learns these predictions. `switchcraft onboard` also asks
    the models of a gateway's configuration.

    For example, for a model that has not answered anything yet:

        switchcraft-train onboard ARTIFACT --choose 100 --out ask
        switchcraft-train label pool.yaml ask/rows.jsonl --out ask
        switchcraft-train onboard ARTIFACT --recording ask --arm NAME \
          --model openai/gpt-5.2 --out NEW

    `--model` takes the price from the list. For a model that is not listed, add
    `--price 0.15,0.60`. To replace a model by its next version, add `--replaces OLD`.

    Args:
        artifact: the artifact's directory
        choose: choose N queries to ask the model, and write them to OUT/rows.jsonl for `label`
        recording: the model's answers: a folder with the rows and answers of `label`, or a
            recording in the leaderboard's format; may be repeated. With `--choose`: answers so far
        arm: the model's name in the recording
        model: the model's id, as in `model_list`; may be repeated. Gateways use the arm for models
            with these ids, and the price is the list price of the first id that is listed
        answers: how many answers to learn from; if there are more, the most informative ones and
            random ones are used
        replaces: the arm whose place the model takes
        out: directory of the new artifact
    """
    from router_service.artifact import Artifact
    from switchcraft_training.onboarding.pool import Joining, check_joining
    from switchcraft_training.onboarding.pool import onboard as add_models
    from switchcraft_training.onboarding.recording import read_answers, read_recorded, write_choice

    downloads = out.parent
    unnamed = ConfigError("switchcraft-train", "--arm", "name the model, as its recording does")
    if choose is not None:
        if recording and arm is None:
            raise unnamed
        recorded = read_recorded(Artifact.load(artifact), data, [arm] if arm else [], downloads)
        given = None
        if recording and arm is not None:
            given = read_answers(recording, arm, recorded)
        count = write_choice(recorded, choose, out, given)
        print(f"{count} queries in {out / 'rows.jsonl'}; ask the model these:")
        print(f"switchcraft-train label POOL.yaml {out}/rows.jsonl --out {out}")
        return
    if arm is None:
        raise unnamed
    if not recording:
        problem = "give the folder with the model's answers; `--choose 100` chooses what to ask it"
        raise ConfigError("switchcraft-train", "--recording", problem)
    old = Artifact.load(artifact)
    found = find_price(model, price, price_per_hour)
    joining = Joining(arm, found, answers, replaces, tuple(dict.fromkeys(model)))
    check_joining(old.manifest, joining)
    recorded = read_recorded(old, data, [arm], downloads)
    answered = read_answers(recording, arm, recorded)
    manifest = add_models(old, recorded, {joining: answered}, out)
    facts = manifest.onboarded[joining.arm]
    print(
        f"{joining.arm}: {facts.answers} answers, compared with {facts.models} recorded models\n"
        f"accuracy {facts.accuracy.value:.1%} ± {facts.accuracy.stderr:.1%}"
        f" on {facts.accuracy.n:,} queries; probabilities ± {facts.probability_stderr:.3f}\n"
        f"cost {manifest.profile[joining.arm].cost_usd():.3g} USD per request"
    )
    _print_result(out, manifest)


pool = App(
    "pool",
    group=ARTIFACTS,
    help="""Remove an arm of an artifact, or change its price, without retraining.

For example:

    switchcraft-train pool remove ARTIFACT ARM --out NEW
    switchcraft-train pool reprice ARTIFACT ARM --price 0.15,0.60 --out NEW
""",
)


@pool.command
def remove(artifact: Path, arm: str, /, *, out: Path) -> None:
    """Write a new artifact without an arm.

    Args:
        artifact: the artifact's directory
        arm: the arm's name
        out: directory of the new artifact
    """
    from router_service.artifact import Artifact
    from switchcraft_training.onboarding.pool import remove_arm

    _print_result(out, remove_arm(Artifact.load(artifact), arm, out))


@pool.command
def reprice(
    artifact: Path,
    arm: str,
    /,
    *,
    price: PriceOption = None,
    price_per_hour: HourlyPrice = None,
    out: Path,
) -> None:
    """Write a new artifact with another price of an arm.

    Args:
        artifact: the artifact's directory
        arm: the arm's name
        out: directory of the new artifact
    """
    from router_service.artifact import Artifact
    from switchcraft_training.onboarding.pool import reprice_arm

    changed = read_price(price, price_per_hour)
    _print_result(out, reprice_arm(Artifact.load(artifact), arm, changed, out))


def read_price(tokens: str | None, hour: str | None) -> Price:
    """Return the price in the options; raises ConfigError if it is missing or not a number."""
    from router_service.policies.costs import Price

    text = tokens or hour
    if not text or (tokens and hour):
        problem = (
            "give --price IN,OUT in USD per million tokens, or --price-per-hour USD; `onboard` can"
            " also find the price by --model PROVIDER/MODEL"
        )
        raise ConfigError("switchcraft-train", "--price", problem)
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    wanted = 2 if tokens else 1
    if len(values) != wanted or not all(0 <= value < math.inf for value in values):
        form = "two numbers such as 0.15,0.60" if tokens else "one number such as 1.20"
        raise ConfigError("switchcraft-train", "--price", f"{text!r} must be {form}")
    if tokens:
        return Price(input_usd_per_mtok=values[0], output_usd_per_mtok=values[1])
    return Price(usd_per_hour=values[0])


def find_price(ids: Sequence[str], tokens: str | None, hour: str | None) -> Price:
    """Return the price in the options, or else the list price of the first listed model.

    Raises ConfigError if an option is not a number, or if there is no price.
    """
    from router_service.prices import look_up_id

    if tokens or hour or not ids:
        return read_price(tokens, hour)
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


def _print_result(out: Path, manifest: Manifest) -> None:
    figures = "has no figures, so goals such as accuracy=best need a new `run`"
    if manifest.frontier:
        figures = f"`switchcraft policies --artifact {out}` shows its figures"
    if manifest.estimated_arms:
        arms = ", ".join(manifest.estimated_arms)
        figures += f". They are estimates, because most answers of {arms} were not recorded"
    print(f"{out}: {figures}")
