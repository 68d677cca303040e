"""Copies of QNN's documents, which are no part of this project: tests that read them are skipped without them."""

from __future__ import annotations

from pathlib import Path

COPIES = next((root / "shared/seeds" for root in Path(__file__).parents if (root / "shared/seeds").is_dir()), None)
"""Their folder, if it lies beside the project or above it."""
