"""Wildcards of `model_list`: any model of a provider by its name, as in LiteLLM's files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from router_service.artifact import SHIPPED
from router_service.core.errors import InvalidRequestError
from router_service.requests.planning import Planner
from router_service.requests.pool import MAX_WILDCARD_MODELS, Pool
from router_service.router import Router
from router_service.runtime.engine import make_planner
from router_service.settings import read_settings

ENVIRON = {"OPENAI_API_KEY": "o", "ANTHROPIC_API_KEY": "a"}

# From LiteLLM's documentation, "Provider specific Wildcard routing".
LITELLM = """
model_list:
  - model_name: "anthropic/*"
    litellm_params:
      model: "anthropic/*"
      api_key: os.environ/ANTHROPIC_API_KEY
  - model_name: "groq/*"
    litellm_params: {model: "groq/*", api_key: g}
  - model_name: "fo::*:static::*" # matches fo::hi::static::hi
    litellm_params: {model: "openai/fo::*:static::*", api_key: o}
  - model_name: "*"
    litellm_params: {model: "*"}
  - model_name: gpt-5.2
    litellm_params: {model: openai/gpt-5.2}
router_settings:
  model_group_alias: {fable: anthropic/claude-sonnet-4-5}
  fallbacks: [{"anthropic/*": [gpt-5.2, openai/gpt-4o]}]
"""


@pytest.fixture(scope="module")
def router() -> Router:
    """Return the shipped router."""
    return Router.load(SHIPPED)


@pytest.fixture
def plan_with(tmp_path: Path, router: Router) -> Callable[[str], tuple[Pool, Planner]]:
    """Return a function that reads a file and builds its pool and planner."""

    def build(text: str) -> tuple[Pool, Planner]:
        path = tmp_path / "config.yaml"
        path.write_text(text)
        settings = read_settings(path, environ=ENVIRON)
        pool = Pool.build(settings, router.artifact.manifest)
        return pool, make_planner(settings, router, pool)

    return build


PlanWith = Callable[[str], tuple[Pool, Planner]]


def test_most_specific_entry_serves_a_name(plan_with: PlanWith) -> None:
    """Exact names come before wildcards, and longer patterns before shorter ones."""
    pool, _ = plan_with(LITELLM)
    served = {
        name: (model.deployments[0].provider, model.deployments[0].upstream_model)
        for name in (
            "gpt-5.2",
            "anthropic/claude-haiku-4-5",
            "groq/openai/gpt-oss-120b",
            "openai/gpt-4o",
            "gpt-4o-mini",
            "fable",
        )
        for model in [pool.models[name]]
    }
    assert served == {
        "gpt-5.2": ("openai", "gpt-5.2"),
        "anthropic/claude-haiku-4-5": ("anthropic", "claude-haiku-4-5"),
        "groq/openai/gpt-oss-120b": ("groq", "openai/gpt-oss-120b"),
        "openai/gpt-4o": ("openai", "gpt-4o"),
        "gpt-4o-mini": ("openai", "gpt-4o-mini"),
        "fable": ("anthropic", "claude-sonnet-4-5"),
    }
    assert list(pool.models) == ["gpt-5.2"], "a wildcard's models are not listed"
    model = pool.models["anthropic/claude-haiku-4-5"]
    assert model.price is not None
    assert model.price.input_usd_per_mtok == 1
    assert model.fallbacks == ("gpt-5.2", "openai/gpt-4o")
    assert model.capabilities.context_window_tokens == 200_000
    [deployment] = model.deployments
    assert deployment.api_key is not None
    assert deployment.api_key.get_secret_value() == "a"


def test_names_that_no_wildcard_can_serve_do_not_exist(plan_with: PlanWith) -> None:
    """A name without a provider, the router's own name and a pattern are no wildcard's models."""
    pool, planner = plan_with(LITELLM)
    for name in (
        "mystery",
        "nowhere/model",
        "openai/*",
        "switchcraft",
        "switchcraft:fast",
        "x" * 201,
    ):
        assert pool.models.get(name) is None
    assert planner.has_name("switchcraft:economy")
    assert planner.has_name("anthropic/claude-opus-4-5")
    with pytest.raises(InvalidRequestError, match="does not exist here") as caught:
        planner.models_for("mystery")
    assert "gpt-5.2" in str(caught.value)


def test_unknown_price_is_refused_by_default(plan_with: PlanWith) -> None:
    """The operator decides, as for listed models, whether the cost of answers may be unknown."""
    pool, _ = plan_with(LITELLM)
    with pytest.raises(InvalidRequestError, match=r"openai/brand-new.*unknown_prices: allow"):
        pool.models["openai/brand-new"]
    pool, _ = plan_with(LITELLM + "router: {unknown_prices: allow}")
    assert pool.models["openai/brand-new"].price is None


def test_names_are_bounded(plan_with: PlanWith) -> None:
    """Clients choose names, which must not create any number of breakers and series."""
    pool, _ = plan_with(LITELLM + "router: {unknown_prices: allow}")
    models = [pool.models[f"openai/m{i}"] for i in range(MAX_WILDCARD_MODELS + 50)]
    assert len({model.deployments[0].id for model in models}) == MAX_WILDCARD_MODELS + 1
    assert len({model.name for model in models}) == MAX_WILDCARD_MODELS + 1
    assert models[-1].name == "*"
    assert models[-1].deployments[0].upstream_model == f"m{MAX_WILDCARD_MODELS + 49}"
    assert pool.models["openai/m3"] is models[3]
