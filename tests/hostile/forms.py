"""The quick form of the tests, which `make test` runs, and the long one of `make check-hostile`."""

from __future__ import annotations

import os

IS_LONG = os.environ.get("HOSTILE") == "long"
