"""Suites that others have written, fetched below `.deps` by the package managers that carry them: `fetch.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
JSON: Final = ROOT / ".deps" / "json-suite"
"""The files of JSONTestSuite."""
PROTOBUF: Final = ROOT / ".deps" / "protobuf-suite"
"""The runner of Protobuf's conformance tests (`run`), and their messages (`include`); or why not (`missing`)."""
