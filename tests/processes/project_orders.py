"""Project the orders of a space, one by one, until it is done: `python project_orders.py URL`."""

import sys

from keepstate import Event, sync


def total(tx: sync.Transaction, event: Event) -> None:
    """Add an order up for its customer, and write it down."""
    customer, amount = event.data["customer"], event.data["amount"]
    tx.documents.update(f"total/{customer}", lambda sum: sum + amount, default=0)
    tx.documents.put(f"total/order {event.number}", amount)


def totals(state: dict[str, int], event: Event) -> dict[str, int]:
    """Do the same to a dict."""
    key = f"total/{event.data['customer']}"
    state[key] = state.get(key, 0) + event.data["amount"]
    state[f"total/order {event.number}"] = event.data["amount"]
    return state


if __name__ == "__main__":
    with sync.open(sys.argv[1]) as ks:
        projection = sync.Projection(
            ks.space("shop").events.stream("orders"), "totals", total, documents="total/*"
        )
        projection.number()
        print("ready", flush=True)
        print(projection.run(at_once=2), flush=True)
