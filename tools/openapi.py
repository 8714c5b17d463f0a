"""Write the OpenAPI document of the server, `docs/reference/openapi.json`, from its table of operations."""

from __future__ import annotations

from pathlib import Path

from keepstate.server.app import document

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "openapi.json"

if __name__ == "__main__":
    PAGE.write_bytes(document())
