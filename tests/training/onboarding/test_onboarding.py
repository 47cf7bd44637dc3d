"""A model joins an artifact from few answers, leaves it, or changes its price."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import yaml

from router_service import cli
from router_service.apis.conversation import Conversation, Json, parse_conversation
from router_service.artifact import Artifact, save_manifest
from router_service.measurement.held_out import (
    HELD_OUT,
    HeldOut,
    both_points,
    describe_pool,
    single_accuracies,
)
from router_service.offline import list_policies
from router_service.policies.costs import Price
from router_service.router import Router
from switchcraft_training.cli import main
from switchcraft_training.cli import main as train
from switchcraft_training.datasets.rows import read_rows
from switchcraft_training.onboarding.newcomers import CONCURRENCY
from switchcraft_training.onboarding.recording import read_recorded
from switchcraft_training.records import Judged
from tests.bodies import CHAT
from tests.serving import served, wait_for
from tests.training.disks import full_disk
from tests.training.onboarding.cases import (
    NEW,
    OTHER_ROWS,
    ROWS,
    answer,
    is_newcomer_right,
    newcomers,
)
from tests.training.runs import write_run
from tests.training.upstreams import ModelUpstream, calling, gateway, published

pytestmark = pytest.mark.slow

MODEL = f"openai/{NEW}"


@pytest.fixture(scope="module")
def joined(artifact: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Choose 24 queries, answer them, and let the new model join."""
    root = tmp_path_factory.mktemp("joined")
    ask = root / "ask"
    base = ["onboard", str(artifact), "--data", str(data)]
    assert main([*base, "--choose", "24", "--out", str(ask)]) == 0
    chosen = list(read_rows(ask / "rows.jsonl"))
    own = {row.example.id for row in ROWS}
    assert len({row.example.id for row in chosen} & own) == 24
    write_run(ask, chosen, newcomers(chosen))
    given = ["--recording", str(ask), "--arm", NEW, "--price", "0.01,0.02", "--answers", "24"]
    ids = ["--model", MODEL, "--model", f"azure/{NEW}", "--model", MODEL]
    assert main([*base, *given, *ids, "--out", str(root / "new")]) == 0
    return root / "new"


def conversation(row: Judged) -> Conversation:
    """Return a query as the router reads it."""
    return parse_conversation(row.example.request)


def test_existing_arms_keep_their_probabilities(artifact: Path, joined: Path) -> None:
    """The new artifact passes its canaries, and no bit of the other arms' probabilities changes.

    The graph for GPUs gets the new arm too, and canary probabilities of its own.
    """
    before, after = Router.load(artifact), Router.load(joined)
    assert after.arms == (*before.arms, NEW)
    conversations = [conversation(row) for row in ROWS]
    old, new = (np.array(r.predict_batch(conversations)) for r in (before, after))
    np.testing.assert_array_equal(new[:, :-1], old)
    for_cpu, for_gpu = (list(after.artifact.canaries(device)) for device in ("cpu", "cuda"))
    assert for_gpu == for_cpu
    assert {NEW in canary.probabilities for canary in for_gpu} == {True}
    (row, *_) = (joined / "canary.jsonl").read_text().splitlines()
    assert list(json.loads(row)["by_device"]) == ["cuda"]


def test_the_new_arm_is_predicted_and_chosen(joined: Path) -> None:
    """The new arm is probable for queries like those that it answers, and cheap enough to win."""
    router = Router.load(joined)
    p = np.array(router.predict_batch([conversation(row) for row in ROWS]))[:, -1]
    is_right = np.array([is_newcomer_right(row) for row in ROWS])
    assert p[is_right].mean() > p[~is_right].mean() + 0.2
    decision = router.decide(ROWS[0].example.request, "theta=0.5")
    assert decision.arm == NEW
    assert decision.cost_usd[NEW] == pytest.approx((100 * 0.01 + 20 * 0.02) / 1e6)


@pytest.fixture(scope="module")
def measured(artifact: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the artifact with held-out predictions of the recorded run."""
    directory = tmp_path_factory.mktemp("measured") / "base"
    shutil.copytree(artifact, directory)
    loaded = Artifact.load(artifact)
    recorded = read_recorded(loaded, data, [], data)
    correct = recorded.table.correct[:, : len(loaded.manifest.arms)]
    rng = np.random.default_rng(0)
    HeldOut(
        probabilities=np.clip(correct * 0.5 + 0.5 * rng.random(correct.shape), 0.01, 0.99),
        correct=correct,
        input_tokens=np.full(correct.shape, 100.0),
        output_tokens=np.full(correct.shape, 20.0),
        seconds=np.ones(correct.shape),
        folds=np.arange(len(correct)) // 2 % 2,  # both kinds of queries are in both folds
        usage=np.full((2, correct.shape[1], 3), [100.0, 20.0, 1.0]),
    ).write(directory)
    save_manifest(directory, loaded.manifest)
    return directory


@pytest.fixture(scope="module")
def estimated(measured: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Let the new model join an artifact that was measured on the recorded queries."""
    root = tmp_path_factory.mktemp("estimated")
    ask = write_run(root / "ask", ROWS[:30], newcomers(ROWS[:30]))
    given = ["--recording", str(ask), "--arm", NEW, "--price", "0.01,0.02", "--answers", "30"]
    command = ["onboard", str(measured), "--data", str(data), *given, "--out", str(root / "new")]
    assert main(command) == 0
    return root / "new"


def test_figures_of_the_new_pool_are_estimated_and_marked(measured: Path, estimated: Path) -> None:
    """The new arm counts with its estimates, and the manifest and `policies` say so."""
    base, found = (Artifact.load(each) for each in (measured, estimated))
    manifest = found.manifest
    assert manifest.estimated_arms == (NEW,)
    assert manifest.frontier
    held_out = HeldOut.read(found.directory / HELD_OUT)
    before = HeldOut.read(base.directory / HELD_OUT)
    np.testing.assert_array_equal(held_out.correct[:, :-1], before.correct)
    np.testing.assert_array_equal(held_out.probabilities[:, :-1], before.probabilities)
    assert held_out.correct[:30, -1].tolist() == [is_newcomer_right(row) for row in ROWS[:30]]
    assert {*held_out.correct[30:, -1]} <= {0.0, 1.0}
    accuracy = manifest.onboarded[NEW].accuracy
    assert single_accuracies(found)[NEW] == accuracy
    assert held_out.correct[:, -1].mean() == pytest.approx(accuracy.value, abs=0.06)
    recorded_costs_usd = held_out.recorded_costs_usd([manifest.profile[NEW].price] * 9)[:, -1]
    assert recorded_costs_usd.mean() == pytest.approx(manifest.profile[NEW].cost_usd())
    assert f"Estimated, because most answers of {NEW}" in "\n".join(list_policies(found))


def test_smaller_and_repriced_pools_are_measured_again(artifact: Path, tmp_path: Path) -> None:
    """Without an arm, or at another price, the figures are those that a gateway would compute."""
    base = Artifact.load(artifact)
    cheap, gone = "grok-4.1-fast", "gpt-5-mini"
    removed, repriced = tmp_path / "removed", tmp_path / "repriced"
    assert main(["pool", "remove", str(artifact), gone, "--out", str(removed)]) == 0
    change = ["pool", "reprice", str(artifact), cheap, "--price", "5,10"]
    assert main([*change, "--out", str(repriced)]) == 0
    price = Price(input_usd_per_mtok=5, output_usd_per_mtok=10)
    others = [arm for arm in base.manifest.arms if arm != gone]
    for directory, arms, prices in (
        (removed, others, {}),
        (repriced, base.manifest.arms, {cheap: price}),
    ):
        found = Router.load(directory).artifact.manifest
        described = describe_pool(base, arms, prices)
        expected = described.manifest
        assert found.frontier == expected.frontier
        assert found.metrics == expected.metrics
        assert found.policies == expected.policies
        verified = () if directory == removed else both_points(described)[0]
        assert found.verified_frontier == verified


def test_replacing_an_arm_takes_its_place(
    artifact: Path, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`--replaces` puts the new arm in the old one's column; all other arms stay as they are.

    Answers to queries that the artifact has not learned from are ignored, with a warning. A command
    that was interrupted while it wrote leaves no artifact, and succeeds when it is repeated.
    """
    asked = [*ROWS, *OTHER_ROWS]
    recording = write_run(tmp_path / "ask", asked, newcomers(asked))
    old = Router.load(artifact)
    out = tmp_path / "new"
    given = ["--recording", str(recording), "--arm", NEW, "--price-per-hour", "1.2"]
    command = ["onboard", str(artifact), "--data", str(data), *given, "--answers", "30"]
    command += ["--replaces", old.arms[2], "--out", str(out)]
    with full_disk(1_000_000), suppress(OSError):
        assert main(command) == 1
    assert not out.exists()
    assert main(command) == 0
    assert "30 answers of newcomer are to queries" in caplog.text
    new = Router.load(out)
    assert new.arms == (*old.arms[:2], NEW, *old.arms[3:])
    rows = [conversation(row) for row in ROWS[:5]]
    kept = [place for place in range(len(old.arms)) if place != 2]
    before, after = (np.array(router.predict_batch(rows)) for router in (old, new))
    np.testing.assert_array_equal(after[:, kept], before[:, kept])


WITHOUT_USAGE = [
    answer(row, NEW, right=True) | {"input_tokens": None, "output_tokens": None} for row in ROWS
]
ALL = newcomers(ROWS)
CHEAP = ("--price", "1,2")
PRESENT = "gpt-5.2"


@pytest.mark.parametrize(
    ("rows", "lines", "options", "problem"),
    [
        (ROWS, ALL[:15], CHEAP, "15 answers of 'newcomer'"),
        (OTHER_ROWS, newcomers(OTHER_ROWS), CHEAP, "none of them is a query of the artifact's"),
        (ROWS, ALL, (*CHEAP, "--answers", "10"), "10 are wanted, at least 20"),
        (ROWS, ALL, ("--price", "0,0"), "a price of 0 makes the arm the cheapest"),
        (ROWS, ALL, (*CHEAP, "--arm", PRESENT), f"{PRESENT!r} is in the pool already; remove it"),
        (ROWS, ALL, ("--model", f"openai/{PRESENT}"), f"the arm {PRESENT!r} stands for openai/"),
        (ROWS, ALL, ("--price", "1"), "must be two numbers"),
        (ROWS, ALL, (), "give --price IN,OUT"),
        (ROWS, ALL, ("--model", "nobody/nothing"), "has no price of nobody/nothing; give --price"),
        (ROWS, WITHOUT_USAGE, CHEAP, "has no recorded answer with the tokens or seconds"),
        (ROWS, [], CHEAP, "has no answers of 'newcomer', but of no model"),
        (ROWS, ALL, (*CHEAP, "--replaces", "nobody"), "the pool has no arm 'nobody'"),
        (ROWS, ALL, (*CHEAP, "--data", "nowhere"), "set --data to the folder"),
    ],
    ids=[
        "too few", "other queries", "too few wanted", "price of zero",
        "arm that is there", "model that is there", "half a price",
        "no price", "no list price", "no profile", "no answers", "unknown arm", "no training data",
    ],
)  # fmt: skip
def test_bad_input_stops_with_what_to_do(
    rows: Sequence[Judged],
    lines: Sequence[dict[str, Json]],
    options: Sequence[str],
    problem: str,
    *,
    artifact: Path,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Unusable input is named, and nothing is written."""
    recording = write_run(tmp_path / "ask", rows, lines)
    given = ["--recording", str(recording), "--arm", NEW, "--answers", "30"]
    out = tmp_path / "new"
    command = ["onboard", str(artifact), "--data", str(data), *given, "--out", str(out)]
    assert main([*command, *options]) == 1
    assert problem in capsys.readouterr().err
    assert not out.exists()


ANSWERS = 30
MODELS = ("caller", "expert")
BY_QUERY = {row.example.query: row for row in ROWS}


def reply(body: dict[str, Any]) -> Mapping[str, Json] | None:
    """Return a model's answer: `expert` is always right, and `caller` makes a call every time.

    `liar` calls for a city that nobody named, and `stranger` does not exist.
    """
    model, row = body["model"], BY_QUERY.get(body["messages"][-1]["content"])
    if model == "stranger":
        return None
    if row is None or not (row.expected.calls or model != "expert"):
        return {"role": "assistant", "content": "No."}
    is_right = row.expected.calls and model != "liar"
    city = row.expected.calls[0].arguments["city"][0] if is_right else "Atlantis"
    return calling("forecast", json.dumps({"city": city}))


@pytest.fixture
def upstream() -> ModelUpstream:
    """Return the provider."""
    return ModelUpstream(reply)


class Newcomers:
    """A configuration whose models the artifact does not know, and the state directory."""

    def __init__(self, folder: Path, artifact: Path, url: str, data: Path) -> None:
        self.config = folder / "gateway.yaml"
        self.state = folder / "state"
        self.published = folder / "published"
        assert train(["publish", str(artifact), "--to", str(self.published)]) == 0
        self._url, self._data = url, data
        self.write(MODELS)

    def write(self, models: tuple[str, ...]) -> None:
        """Write the configuration of these models, whose gateways look for releases."""
        entries = [
            {
                "model_name": name,
                "litellm_params": {
                    "model": f"openai/{name}",
                    "api_base": self._url,
                    "api_key": "k",
                },
                "model_info": {
                    "input_cost_per_token": (place + 1) * 1e-6,
                    "output_cost_per_token": (place + 1) * 4e-6,
                },
            }
            for place, name in enumerate(models)
        ]
        router = {"publication": str(self.published)}
        self.config.write_text(yaml.safe_dump({"model_list": entries, "router": router}))

    def arguments(self, *options: str) -> list[str]:
        """Return the command's arguments."""
        given = ["--answers", str(ANSWERS), "--data", str(self._data)]
        return ["onboard", str(self.config), *given, *options]

    @property
    def artifacts(self) -> list[Path]:
        """The artifacts that were written."""
        return [*(self.state / "switchcraft" / "artifacts").glob("*")]


@pytest.fixture
def joining(
    upstream: ModelUpstream,
    artifact: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Newcomers]:
    """Yield the joining, with a state directory of their own."""
    with served(upstream.app) as url:
        found = Newcomers(tmp_path, artifact, f"{url}/v1", data)
        monkeypatch.setenv("XDG_STATE_HOME", str(found.state))
        yield found


def route(http: httpx.Client, row: Judged) -> str:
    """Send a query to a gateway, and return the model that it chooses before any answer."""
    body = {**row.example.request, "model": "switchcraft"}
    headers = {"x-switchcraft-policy": "theta=0.5"}
    answer = http.post(CHAT, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-switchcraft-model"]


def test_unknown_models_join_after_a_kill_and_are_routed_to(
    joining: Newcomers, upstream: ModelUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run shows the cost and asks nothing; a killed run continues; then requests are routed.

    Only requests in flight at the kill are repeated. The accuracies are those of the models. A
    running gateway gets the canary and, when it is promoted, chooses both models before an answer.
    """
    assert cli.main(joining.arguments("--dry-run")) == 0
    assert upstream.asked.total() == 0
    shown = capsys.readouterr().out
    assert [line.split()[:2] for line in shown.splitlines()[1:3]] == [[m, "30"] for m in MODELS]

    upstream.limit = 20
    command = [sys.executable, "-m", "router_service.cli", *joining.arguments("--yes")]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as run:
        try:
            wait_for(lambda: upstream.asked.total() > upstream.limit, "it asks")
        finally:
            run.kill()
    upstream.limit = 1_000_000
    with gateway(joining.config) as url, httpx.Client(base_url=url) as http:
        assert cli.main(joining.arguments("--yes", "--publish")) == 0
        asked = upstream.asked.total()
        wait_for(lambda: published(http)["canary"], "the canary is loaded")
        assert train(["publish", "--to", str(joining.published), "--promote"]) == 0
        wait_for(lambda: not published(http)["canary"], "the canary is promoted")
        served = {bool(row.expected.calls): route(http, row) for row in ROWS[:2]}
    assert served == {True: "caller", False: "expert"}
    # Each of the two runs first sees whether a model answers at all.
    assert asked <= len(MODELS) * (ANSWERS + CONCURRENCY + 2)
    shown = capsys.readouterr().out
    estimated = {name: float(shown.split(f"{name}: ")[1].split("%")[0]) for name in MODELS}
    assert estimated["expert"] > 80
    assert estimated["caller"] < 70


@pytest.mark.parametrize(
    ("models", "options", "status", "problem"),
    [
        (("caller",), ("--budget", "0.02"), 3, "Stopped below the spending cap"),
        (("stranger",), (), 1, "Check the model's name at the provider"),
        (("liar",), (), 1, "none of the 30 answers of 'liar' is correct"),
    ],
    ids=["budget", "unreachable", "all wrong"],
)
def test_nothing_is_written_without_enough_answers(
    models: tuple[str, ...],
    options: tuple[str, ...],
    status: int,
    problem: str,
    joining: Newcomers,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A budget that runs out, an unknown model and wrong answers end with what to do."""
    joining.write(models)
    assert cli.main(joining.arguments("--yes", *options)) == status
    assert problem in capsys.readouterr().err
    assert not joining.artifacts
