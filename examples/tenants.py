"""Two customers in one store: one moves away with all its data, and one of its people is forgotten before.

    python -m examples.tenants FOLDER

The folder gets the store, the export and the customer's new store. Read the export: it is text.
"""

from __future__ import annotations

import sys
from pathlib import Path

import keepstate.sync
from keepstate import NotAllowedError, NotOwnerError
from keepstate.sync import Keepstate
from keepstate.sync.sessions.session import Session


def talk(tenant: Keepstate, person: str, *words: str) -> None:
    """Let a person say something, in a session of its own."""
    with Session(f"chat-of-{person}", user_id=person, persistence=tenant) as session:
        for text in words:
            session.conversation.append({"role": "user", "content": text})
        session.user.update_preferences({"language": "en"})


def main(folder: Path) -> None:
    """Run the story, and print each step."""
    export = folder / "acme.jsonl"
    with keepstate.sync.open(f"sqlite:///{folder}/agents.db") as ks:
        acme, zeta = ks.tenant("acme"), ks.tenant("zeta")
        talk(acme, "ann", "Book a flight to Rome", "On Monday")
        talk(acme, "bob", "My address is 2 Main Street")
        talk(zeta, "ann", "I am another Ann")
        print("tenants:", ", ".join(tenant.id for tenant in ks.tenants()))
        print("acme has:", ", ".join(acme.spaces()))

        try:
            Session("chat-of-ann", user_id="bob", persistence=acme).conversation.count()
        except NotOwnerError:
            print("bob cannot open ann's chat")
        try:
            acme.tenants()
        except NotAllowedError:
            print("acme cannot list the tenants")

        for name in ("session/chat-of-bob", "user/bob"):
            acme.drop(name)
        exported = acme.export(export)
        knows = "knows" if "Main Street" in export.read_text() else "does not know"
        print(f"exported {exported.spaces} spaces; the file {knows} where bob lives")

        with keepstate.sync.open(f"sqlite:///{folder}/acme.db") as own:
            own.tenant("acme").import_(export)
            moved = Session("chat-of-ann", user_id="ann", persistence=own.tenant("acme"))
            print("in the new store:", [message["content"] for message in moved.conversation.messages()])

        erased = acme.erase(confirm="acme")
        print(f"erased {erased.spaces} spaces of acme")
        print("tenants:", ", ".join(tenant.id for tenant in ks.tenants()))
        for place in erased.not_reached:
            print("not reached:", place)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
