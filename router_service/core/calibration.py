"""Calibration: a monotone map for each arm from the graph's output to a probability.

Thresholds, and drifts between arms, are only meaningful for calibrated probabilities. The maps are
part of the manifest.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

Floats = NDArray[np.float64]
Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Number = Annotated[float, Field(allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]

NEAREST = 1e-6
"""Raw probabilities are clipped to this distance from 0 and 1, where logits are infinite."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class IdentityCalibration(_Frozen):
    """No calibration: the graph's output is the probability."""

    method: Literal["identity"] = "identity"

    @property
    def arms(self) -> int | None:
        """Number of arms that the map is for; None for any number."""
        return None

    def apply(self, probabilities: Floats) -> Floats:
        """Return probabilities (batch, arms) unchanged."""
        return probabilities


class Temperature(_Frozen):
    """Temperature scaling: all logits are divided by one number (Guo et al., 2017, section 4.2).

    arXiv 1706.04599.
    """

    method: Literal["temperature"] = "temperature"
    temperature: float = Field(gt=0, allow_inf_nan=False)

    @property
    def arms(self) -> int | None:
        """Number of arms that the map is for; None for any number."""
        return None

    def apply(self, probabilities: Floats) -> Floats:
        """Calibrate raw probabilities (batch, arms)."""
        return sigmoid(logit(probabilities) / self.temperature)


class Platt(_Frozen):
    """Platt scaling: a rising line for each arm's logit (Platt, 1999)."""

    method: Literal["platt"] = "platt"
    slopes: tuple[NonNegative, ...]
    intercepts: tuple[Number, ...]

    @model_validator(mode="after")
    def _check_lengths(self) -> Platt:
        if len(self.slopes) != len(self.intercepts):
            raise ValueError(f"{len(self.slopes)} slopes, {len(self.intercepts)} intercepts")
        return self

    @property
    def arms(self) -> int | None:
        """Number of arms that the map is for."""
        return len(self.slopes)

    def apply(self, probabilities: Floats) -> Floats:
        """Calibrate raw probabilities (batch, arms)."""
        return sigmoid(logit(probabilities) * np.array(self.slopes) + np.array(self.intercepts))


class Knots(_Frozen):
    """A map through points: linear between them, constant outside them."""

    raw: tuple[Probability, ...] = Field(min_length=1)
    calibrated: tuple[Probability, ...]

    @model_validator(mode="after")
    def _check_monotone(self) -> Knots:
        if len(self.raw) != len(self.calibrated):
            raise ValueError(f"{len(self.raw)} raw values, {len(self.calibrated)} calibrated ones")
        if (np.diff(self.raw) <= 0).any() or (np.diff(self.calibrated) < 0).any():
            raise ValueError("raw values must rise, and calibrated values must not fall")
        return self


class Isotonic(_Frozen):
    """Isotonic regression: a piecewise linear map for each arm (Zadrozny and Elkan, 2002)."""

    method: Literal["isotonic"] = "isotonic"
    knots: tuple[Knots, ...]

    @property
    def arms(self) -> int | None:
        """Number of arms that the map is for."""
        return len(self.knots)

    def apply(self, probabilities: Floats) -> Floats:
        """Calibrate raw probabilities (batch, arms)."""
        columns = zip(probabilities.T, self.knots, strict=True)
        return np.column_stack([np.interp(raw, k.raw, k.calibrated) for raw, k in columns])


Calibration = Annotated[
    IdentityCalibration | Temperature | Platt | Isotonic, Field(discriminator="method")
]
Method = Literal["identity", "temperature", "platt", "isotonic"]

IDENTITY = IdentityCalibration()


def logit(probabilities: Floats) -> Floats:
    """Return the log-odds of probabilities, finite even for 0 and 1."""
    inside = np.clip(probabilities, NEAREST, 1 - NEAREST)
    odds: Floats = np.log(inside) - np.log1p(-inside)
    return odds


def sigmoid(logits: Floats) -> Floats:
    """Return the probabilities of log-odds, without overflow."""
    # The argument of exp is never positive, so it does not overflow.
    small = np.exp(-np.abs(logits))
    probabilities: Floats = np.where(logits >= 0, 1.0, small) / (1.0 + small)
    return probabilities
