"""Write what the table of operations says: `docs/reference/openapi.json`, and the page of rights.

`rights_table` makes the table of the page from what each right may do, which a test measures by requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from keepstate.server.app import OPERATIONS, document
from keepstate.server.keys import IMPLIED, RIGHTS

_REFERENCE: Final = Path(__file__).resolve().parent.parent / "docs" / "reference"
PAGE: Final = _REFERENCE / "openapi.json"
RIGHTS_PAGE: Final = _REFERENCE / "rights.md"
_HEAD: Final = """\
# Operations and rights

Each operation of the [server](../how-to/serve.md), and the keys that may call it. A key has one or more
rights; only `admin` includes others: `read` and `write`. Where two rights are needed, the key has both.
`store` allows none of these operations: it opens [`/store`](../how-to/remote-store.md). Without a key, only
the files of the inspector, `/healthz`, `/readyz`, `/openapi.json`, `/open` and `/approvals` answer.

`python tools/openapi.py` writes this page. A test compares it with what a server does for keys of each right.
"""


def rights_table(allowed: Mapping[str, frozenset[str]]) -> str:
    """Return the table, from the rights that each operation is allowed to, each alone."""
    lines = [
        f"| operation | request | needs | {' | '.join(RIGHTS)} |",
        f"|---|---|---|{'---|' * len(RIGHTS)}",
    ]
    for row in OPERATIONS:
        marks = ("yes" if right in allowed[row.name] else "" for right in RIGHTS)
        needs = ", ".join(f"`{right}`" for right in (row.right, *row.also))
        lines.append(f"| `{row.name}` | `{row.method} {row.path}` | {needs} | {' | '.join(marks)} |")
    return "\n".join(line.replace("|  |", "| |").replace("|  |", "| |") for line in lines) + "\n"


def declared() -> dict[str, frozenset[str]]:
    """Return the rights that, each alone, are enough for each operation, as the table of operations says."""
    return {
        row.name: frozenset(
            right for right in RIGHTS if {row.right, *row.also} <= {right, *IMPLIED.get(right, ())}
        )
        for row in OPERATIONS
    }


def rights_page(allowed: Mapping[str, frozenset[str]]) -> str:
    """Return the page of rights."""
    return f"{_HEAD}\n{rights_table(allowed)}"


if __name__ == "__main__":
    PAGE.write_bytes(document())
    RIGHTS_PAGE.write_text(rights_page(declared()), encoding="utf-8")
