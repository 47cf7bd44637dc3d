"""Which model serves which arm: by the ids that providers and LiteLLM write, never by likeness."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from router_service.artifact import Manifest
from router_service.core.errors import ConfigError
from router_service.requests.mapping import (
    ArmMapping,
    Basis,
    instead_of,
    map_models,
)
from router_service.settings import Settings, read_settings
from tests.fakes import manifest

CONFIG = Path("training/switchcraft_training/configs/frontier-2025-12.yaml")
POOL: list[dict[str, Any]] = yaml.safe_load(CONFIG.read_text())["pool"]
KEYS = {
    f"{name}_API_KEY": "k"
    for name in "OPENAI ANTHROPIC GEMINI XAI OPENROUTER AZURE MISTRAL GROQ".split()
}
ENVIRON = KEYS | {"AZURE_API_BASE": "https://eu.openai.azure.com"}
OWN = "http://litellm:4000/v1"


def frontier() -> Manifest:
    """Return a manifest with the arms of the pool of December 2025 and their ids."""
    fake = manifest()
    arms = tuple(each["arm"] for each in POOL)
    return fake.model_copy(
        update={
            "arms": arms,
            "stands_for": {each["arm"]: tuple(each["stands_for"]) for each in POOL},
            "profile": dict.fromkeys(arms, fake.profile["small"]),
        }
    )


def entry(model: str, name: str = "m", base: str | None = None, **params: object) -> dict[str, Any]:
    """Return an entry of `model_list`; `base` is its `base_model`."""
    info = {} if base is None else {"base_model": base}
    return {"model_name": name, "litellm_params": {"model": model, **params}, "model_info": info}


def read(tmp_path: Path, *models: Mapping[str, Any], **router: object) -> Settings:
    """Return the settings of a file with these models and this section `router`."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"model_list": list(models), "router": router}))
    return read_settings(path, environ=ENVIRON)


KNOWN = [
    # OpenAI: with and without the provider, an alias or a dated version.
    (entry("openai/gpt-5.2"), "gpt-5.2"),
    (entry("gpt-5.2-2025-12-11"), "gpt-5.2"),
    # Azure: the deployment's name, or the base model of an own name.
    (entry("azure/gpt-5.2", api_version="2025-04-01-preview"), "gpt-5.2"),
    (entry("azure/my-deployment", "m", "azure/gpt-5-mini"), "gpt-5-mini"),
    (entry("openai/gpt-5.2", api_base="https://x.openai.azure.com/openai/v1"), "gpt-5.2"),
    # Anthropic.
    (entry("anthropic/claude-haiku-4-5-20251001"), "claude-haiku-4.5"),
    (entry("claude-haiku-4-5-20251001"), "claude-haiku-4.5"),
    # Bedrock: regions and APIs do not change the model.
    (
        entry("bedrock/us.anthropic.claude-haiku-4-5-20251001-v1:0", aws_region_name="us-east-1"),
        "claude-haiku-4.5",
    ),
    (
        entry(
            "bedrock/converse/au.anthropic.claude-sonnet-4-5-20250929-v1:0",
            aws_region_name="us-east-1",
        ),
        "claude-sonnet-4.5",
    ),
    # Vertex AI, with `@` before the version, and Gemini.
    (entry("vertex_ai/claude-haiku-4-5@20251001", vertex_project="p"), "claude-haiku-4.5"),
    (entry("gemini/gemini-2.5-flash-lite"), "gemini-2.5-flash-lite"),
    # xAI and OpenRouter.
    (entry("openrouter/anthropic/claude-haiku-4.5"), "claude-haiku-4.5"),
    (
        entry("openai/anthropic/claude-haiku-4.5", api_base="https://openrouter.ai/api/v1"),
        "claude-haiku-4.5",
    ),
    # A base model names the model of any server.
    (entry("openai/fast", "m", "anthropic/claude-haiku-4-5", api_base=OWN), "claude-haiku-4.5"),
]

UNKNOWN = [
    (entry("openai/gpt-5.1"), "the router has not measured openai/gpt-5.1"),
    (entry("openai/ft:gpt-4.1-mini-2025-04-14:me::1", "gpt-4.1-mini"), "the router has not"),
    (entry("openai/gpt-4o", "gpt-5.2"), "the router has not measured openai/gpt-4o"),
    (entry("openrouter/anthropic/claude-haiku-4.5:thinking"), "the router has not measured"),
    (entry("openai/qwen3", "gpt-5.2", api_base=OWN), "the router has not measured qwen3"),
    (entry("openai/gpt-5.2", reasoning_effort="high"), "it sets reasoning_effort"),
    (entry("openai/claude-haiku-4-5-20251001", api_base=OWN), "is not a known provider's address"),
]


@pytest.mark.parametrize(("model", "arm"), KNOWN, ids=lambda each: str(each)[:60])
def test_model_maps_itself_by_its_id(tmp_path: Path, model: dict[str, Any], arm: str) -> None:
    """A model list alone is enough, however the provider and LiteLLM write the id."""
    found = map_models(read(tmp_path, model), frontier())
    assert found == ArmMapping({arm: "m"}, {arm: Basis.ID})


@pytest.mark.parametrize(("model", "reason"), UNKNOWN, ids=lambda each: str(each)[:60])
def test_other_models_are_served_by_name(
    tmp_path: Path, model: dict[str, Any], reason: str
) -> None:
    """Neither a similar id nor the arm's name makes a model the measured one."""
    found = map_models(read(tmp_path, model), frontier())
    assert found.models == {}
    (unrouted,) = found.unrouted
    assert unrouted.model == model["model_name"]
    assert reason in unrouted.reason
    assert "onboard" in unrouted.remedy or "base_model" in unrouted.remedy


def test_deployments_of_a_model_must_be_the_same_model(tmp_path: Path) -> None:
    """One deployment of another model, or one whose model is unknown, keeps the model out."""
    same = [entry("openai/gpt-5.2"), entry("azure/x", "m", "azure/gpt-5.2-2025-12-11")]
    assert map_models(read(tmp_path, *same), frontier()).models == {"gpt-5.2": "m"}
    for other in (entry("openai/gpt-5-mini"), entry("azure/x")):
        found = map_models(read(tmp_path, *same, other), frontier())
        assert found.models == {}
        assert "its deployments are different models: openai/gpt-5.2" in found.unrouted[0].reason


def test_first_of_two_equal_models_serves_the_arm(tmp_path: Path) -> None:
    """`router.arms` chooses another one, and null leaves the arm out without a complaint."""
    models = [entry("openai/gpt-5.2", "a"), entry("azure/gpt-5.2", "b")]
    found = map_models(read(tmp_path, *models), frontier())
    assert found.models == {"gpt-5.2": "a"}
    assert found.unrouted[0].remedy == "set router.arms to {gpt-5.2: b} to use this one"
    found = map_models(read(tmp_path, *models, arms={"gpt-5.2": "b"}), frontier())
    assert found.models == {"gpt-5.2": "b"}
    found = map_models(read(tmp_path, *models, arms={"gpt-5.2": None}), frontier())
    assert found == ArmMapping()


def test_arm_of_another_model_is_refused_with_the_remedies(tmp_path: Path) -> None:
    """The message says what the model is, what the arm is, and the two ways on."""
    models = [entry("anthropic/claude-haiku-4-5", "haiku"), entry("openai/gpt-5.2", "high")]
    models[1]["litellm_params"]["reasoning_effort"] = "high"
    arms = {"claude-opus-4.5": "haiku", "gpt-5.2": "high"}
    with pytest.raises(ConfigError) as caught:
        map_models(read(tmp_path, *models, arms=arms), frontier())
    opus, effort = sorted(str(problem.problem) for problem in caught.value.problems)
    assert opus.startswith(
        "the model 'haiku' is anthropic/claude-haiku-4-5, and this arm is "
        "anthropic/claude-opus-4-5;"
        " write claude-haiku-4.5: haiku."
    )
    assert effort.startswith(
        "the model 'high' is not openai/gpt-5.2 as measured: it sets reasoning"
    )
    for text in (opus, effort):
        assert "switchcraft onboard CONFIG" in text
        assert "router.stand_ins" in text


def test_stand_in_is_accepted_and_remembered(tmp_path: Path) -> None:
    """With explicit consent, an arm's figures are used for another model."""
    models = [entry("openai/gpt-4o", "old")]
    found = map_models(read(tmp_path, *models, stand_ins={"gpt-5.2": "old"}), frontier())
    assert found.stand_ins == {"gpt-5.2": "old"}
    with pytest.raises(ConfigError, match=r"router\.arms has this arm too"):
        map_models(
            read(tmp_path, *models, stand_ins={"small": "old"}, arms={"small": "old"}),
            manifest(),
        )


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gpt-5-2", "gpt-5.2"),
        ("claude-hiaku-4.5", "claude-haiku-4.5"),
        ("claude-sonet-4.5", "claude-sonnet-4.5"),
        ("gpt-5.1", None),
        ("claude-haiku-3.5", None),
        ("gemini-2.5-flash", None),
    ],
)
def test_only_another_spelling_is_suggested(name: str, meant: str | None) -> None:
    """A similar name may be another model, and is not suggested."""
    text = instead_of(name, [each["arm"] for each in POOL])
    assert text == f"did you mean {meant!r}?" if meant else text.startswith("use one of ")
