"""A process that writes into a session beside others: `python appending.py URL NAME COUNT`."""

import sys

from keepstate import sync

if __name__ == "__main__":
    url, name, count = sys.argv[1:]
    with sync.open(url) as ks:
        session = sync.Session("s", persistence=ks)
        for number in range(int(count)):
            session.conversation.append({"role": "user", "content": f"{name} {number}"})
