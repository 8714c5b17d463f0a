"""Write into a session next to others: `python append_to_session.py URL NAME COUNT`."""

import sys

from keepstate import sync

if __name__ == "__main__":
    url, name, count = sys.argv[1:]
    with sync.open(url) as ks:
        session = sync.Session("s", persistence=ks)
        for number in range(int(count)):
            session.conversation.append({"role": "user", "content": f"{name} {number}"})
