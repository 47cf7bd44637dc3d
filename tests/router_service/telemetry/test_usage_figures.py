"""Usage in sentences: grammar, savings, accuracy with its interval, feedback."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from router_service.core.money import NANO
from router_service.database.schema import PPM, UsageSums
from router_service.telemetry.usage_figures import UsageFigures, UsageSummary


def sums(**values: int) -> UsageSums:
    """Return the sums of a day: 812 requests, 96% as accurate, 14.20 USD less."""
    usual = {
        "requests": 812,
        "cost_nusd": 3 * NANO,
        "compared_nusd": 2_800_000_000,
        "baseline_nusd": 17 * NANO,
        "estimated": 790,
        "correct_ppm": 672 * PPM,
        "baseline_correct_ppm": 700 * PPM,
        "variance_ppm": 36 * PPM,
        "error_ppm": 2 * PPM,
    }
    changed = UsageSums()
    for name, value in (usual | values).items():
        setattr(changed, name, value)
    return changed


def summary(values: Mapping[str, int]) -> UsageSummary:
    """Return the summary of these sums."""
    return UsageSummary.of(UsageFigures.of(sums(**values)), "gpt-5.2")


ACCURATE = "812 requests; answers expected to be 96% as accurate as gpt-5.2's"
NOT_ROUTED = dict.fromkeys(
    ("compared_nusd", "baseline_nusd", "estimated", "correct_ppm", "baseline_correct_ppm"), 0
)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {},
            f"{ACCURATE}; 14.20 USD less.",
        ),
        (
            {"compared_nusd": 17 * NANO},
            f"{ACCURATE}; at the same cost.",
        ),
        (
            {"estimated": 0, "correct_ppm": 0, "baseline_correct_ppm": 0},
            "812 requests; 14.20 USD less than with gpt-5.2.",
        ),
        (
            {
                "estimated": 0,
                "correct_ppm": 0,
                "baseline_correct_ppm": 0,
                "compared_nusd": 17 * NANO,
            },
            "812 requests; at the same cost as with gpt-5.2.",
        ),
        (NOT_ROUTED, "812 requests; 3.00 USD spent."),
        ({"requests": 0}, "No requests."),
        (
            {"compared_nusd": 17 * NANO - 3_800_000},
            f"{ACCURATE}; 0.0038 USD less.",
        ),
    ],
)
def test_sentence(values: dict[str, int], sentence: str) -> None:
    """It is correct for none, one and many, for savings and extra cost, and for what is missing."""
    assert summary(values).sentence == sentence


def test_details_say_how_sure_it_is() -> None:
    """The interval, what it is from, unfamiliar requests, feedback and calls that were wrong."""
    counts = {"unfamiliar": 12, "invalid_calls": 1, "tool_errors": 3}
    found = summary(counts | {"feedback_correct": 12, "feedback_wrong": 2})
    assert found.details == (
        "Between 94% and 98%, by calibrated probabilities of 790 routed requests.",
        "12 requests are unlike the training data, where probabilities are less certain.",
        "Feedback: 12 of 14 answers correct.",
        "1 tool call does not fit its tool's schema.",
        "3 tool calls returned an error.",
    )
    one = summary(
        {"estimated": 1, "unfamiliar": 1, "feedback_wrong": 1, "repeated_calls": 2}
    ).details
    assert one[0].endswith("of 1 routed request.")
    assert one[1].startswith("1 request is unlike")
    assert one[2:] == (
        "Feedback: 0 of 1 answer correct.",
        "2 tool calls were repeated with other arguments.",
    )
