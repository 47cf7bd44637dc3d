"""Write the golden files again: python -m tests.goldens."""

from __future__ import annotations

import logging

from tests.goldens.recording import FOLDER, keeping_approximations, record

logging.basicConfig(handlers=[logging.NullHandler()])  # the answers that break off are intended

for name, text in record().items():
    path = FOLDER / name
    before = path.read_text() if path.exists() else ""
    path.write_text(keeping_approximations(text, before))
