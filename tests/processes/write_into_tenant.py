"""Write into new and known spaces of a tenant until a write is rejected; print the number of writes before.

Words: the URL, the tenant, the name of this writer, and whether each write takes large values.
"""

from __future__ import annotations

import itertools
import sys

from keepstate import NotAllowedError, sync


def write(url: str, tenant: str, name: str) -> None:
    with sync.open(url) as ks:
        handle = ks.tenant(tenant)
        for number in itertools.count():
            space = handle.space(f"{name}/{number % 7}" if number % 2 else f"{name}/new/{number}")
            try:
                if number % 4 == 0:
                    space.documents.put("person", f"PERSON-{tenant}-{number}")
                elif number % 4 == 1:
                    space.events.append("said", f"PERSON-{tenant}-{number}")
                elif number % 4 == 2:
                    space.queue.put({"who": f"PERSON-{tenant}"}, id=f"t{number}")
                else:
                    space.documents.put("large", f"PERSON-{tenant}".encode() * 200_000)
            except NotAllowedError as error:
                print(number if error.tenant == tenant else error, flush=True)
                return
            if number == 8:
                print("writing", flush=True)


write(*sys.argv[1:4])
