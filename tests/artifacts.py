"""The shipped artifacts that tests use."""

from __future__ import annotations

from router_service.artifact import ARTIFACTS

REFERENCE_POOL = ARTIFACTS / "reference-pool"
"""The older shipped artifact: its default policy chooses once, and its figures never change."""
