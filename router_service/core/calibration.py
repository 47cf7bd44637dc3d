"""What a graph says -> how often it comes true: a monotone map an arm, kept in the manifest.

Probabilities that keep their word are what thresholds, and drifts between arms, rely on.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

Floats = NDArray[np.float64]
Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Number = Annotated[float, Field(allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]

NEAREST = 1e-6
"""Raw probabilities are taken to be at least this far from 0 and 1, where logits are infinite."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Identity(_Frozen):
    """As the graph says."""

    method: Literal["identity"] = "identity"

    @property
    def arms(self) -> int | None:
        """How many arms it is for; None: any."""
        return None

    def apply(self, probabilities: Floats) -> Floats:
        """Return probabilities (batch, arms) as they are."""
        return probabilities


class Temperature(_Frozen):
    """Every logit divided by one number (Guo et al., 2017, arXiv 1706.04599, section 4.2)."""

    method: Literal["temperature"] = "temperature"
    temperature: float = Field(gt=0, allow_inf_nan=False)

    @property
    def arms(self) -> int | None:
        """How many arms it is for; None: any."""
        return None

    def apply(self, probabilities: Floats) -> Floats:
        """Calibrate raw probabilities (batch, arms)."""
        return sigmoid(logit(probabilities) / self.temperature)


class Platt(_Frozen):
    """Each arm's logit on a rising line (Platt, 1999)."""

    method: Literal["platt"] = "platt"
    slopes: tuple[NotNegative, ...]
    intercepts: tuple[Number, ...]

    @model_validator(mode="after")
    def _paired(self) -> Platt:
        if len(self.slopes) != len(self.intercepts):
            raise ValueError(f"{len(self.slopes)} slopes, {len(self.intercepts)} intercepts")
        return self

    @property
    def arms(self) -> int | None:
        """How many arms it is for."""
        return len(self.slopes)

    def apply(self, probabilities: Floats) -> Floats:
        """Calibrate raw probabilities (batch, arms)."""
        return sigmoid(logit(probabilities) * np.array(self.slopes) + np.array(self.intercepts))


class Knots(_Frozen):
    """A map through these points: straight between them, constant before and behind."""

    raw: tuple[Probability, ...] = Field(min_length=1)
    calibrated: tuple[Probability, ...]

    @model_validator(mode="after")
    def _monotone(self) -> Knots:
        if len(self.raw) != len(self.calibrated):
            raise ValueError(f"{len(self.raw)} raw values, {len(self.calibrated)} calibrated ones")
        if (np.diff(self.raw) <= 0).any() or (np.diff(self.calibrated) < 0).any():
            raise ValueError("knots do not rise")
        return self


class Isotonic(_Frozen):
    """Each arm through its own knots (Zadrozny and Elkan, 2002)."""

    method: Literal["isotonic"] = "isotonic"
    knots: tuple[Knots, ...]

    @property
    def arms(self) -> int | None:
        """How many arms it is for."""
        return len(self.knots)

    def apply(self, probabilities: Floats) -> Floats:
        """Calibrate raw probabilities (batch, arms)."""
        columns = zip(probabilities.T, self.knots, strict=True)
        return np.column_stack([np.interp(raw, k.raw, k.calibrated) for raw, k in columns])


Calibration = Annotated[Identity | Temperature | Platt | Isotonic, Field(discriminator="method")]
Method = Literal["identity", "temperature", "platt", "isotonic"]

IDENTITY = Identity()


def logit(probabilities: Floats) -> Floats:
    """Return log-odds, finite also at 0 and 1."""
    inside = np.clip(probabilities, NEAREST, 1 - NEAREST)
    odds: Floats = np.log(inside) - np.log1p(-inside)
    return odds


def sigmoid(logits: Floats) -> Floats:
    """Return the probabilities of log-odds, without overflow."""
    # exp of what is at most 0 never overflows.
    small = np.exp(-np.abs(logits))
    probabilities: Floats = np.where(logits >= 0, 1.0, small) / (1.0 + small)
    return probabilities
