"""The scripted agent of the benchmark, with one model."""

from __future__ import annotations

from benchmarks.agents import SONNET, Agent, run


def test_an_agent_with_one_model_finds_most_of_its_prompt_in_the_cache() -> None:
    """It does the whole script with this model, whose upstream reports the tokens it has read."""
    found = run(Agent.read("airline"), SONNET, "", 0)
    assert found.models == {SONNET: 15}
    assert (found.candidates, found.changes, found.escalations) == (1.0, 0, 0)
    assert 0.8 < found.cached_share < 1
