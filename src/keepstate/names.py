"""Stored names of spaces: an encoding of the tenant, if any, and the name of the space; and of segments.

Invariants: the encoding is reversible. The prefix of a tenant's names is not a prefix of any name of another
tenant, or of a space without a tenant. Stored names sort by tenant, spaces without one first, then by name,
in the order of UTF-8 bytes. A space without a tenant is stored under its own name, unless that begins with
one of the two last code points.

```
run/42                     no tenant
U+10FFFF acme 01 run/42    tenant "acme"
U+10FFFE 01 rest           no tenant, the name U+10FFFE rest; 02 for U+10FFFF
```

In a tenant's id the characters 00, 01 and 02 are written as 02 03, 02 04 and 02 05, so that 01 ends the id.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from enum import Enum
from hashlib import sha256
from typing import Final
from urllib.parse import unquote

from keepstate.errors import CorruptError

DEFAULT_URL: Final = "sqlite:///keepstate.db"
"""The store that is opened if a caller names none."""
RESERVED: Final = "keepstate:"
"""Prefix of the names of spaces that keepstate makes for itself, with and without a tenant."""
OWN_RECORD: Final = RESERVED + "tenant"
"""Name of the space with the record of its tenant: its quotas, and the state of an erasure."""
USAGE_SPACE: Final = "usage"
"""The space of the usage of a tenant, or of a store without tenants."""
INDEX_SPACE: Final = f"{RESERVED}index"
"""Name of the space with the index of a tenant's subjects."""
TENANTS: Final = "\U0010ffff"
"""Prefix of the stored names of all tenants."""
_TENANT: Final = TENANTS
_PLAIN: Final = "\U0010fffe"
_END: Final = "\x01"
_ESCAPE: Final = "\x02"
_ESCAPED: Final = {code: _ESCAPE + chr(code + 3) for code in range(3)}
_SIGNS: Final = str.maketrans(
    {sign: f"%{ord(sign):02X}" for sign in ("%", "/", "~", "#", "@", "\x7f", *map(chr, range(32)))}
)
_LABEL_BYTES: Final = 200
_SEGMENT_BYTES: Final = 56
"""Three segments and the name of a kind fit into the name of a space."""
_PLAIN_ESCAPED: Final = {_PLAIN: _PLAIN + "\x01", _TENANT: _PLAIN + "\x02"}


class TenantScope(Enum):
    """The tenants that a listing covers: `OWN` or `ALL`."""

    OWN = "own"
    ALL = "all"

    def __repr__(self) -> str:
        return self.name


OWN: Final = TenantScope.OWN
"""Lists what belongs to the tenant of the handle; without a tenant, what belongs to none."""
ALL: Final = TenantScope.ALL
"""Lists what belongs to any tenant or to none: for a handle without a tenant."""


def beginning(tenant: str | None) -> str:
    """Return the prefix of all stored names of a tenant; empty without a tenant.

    Spaces without a tenant do not share a prefix: their names sort before those of the first tenant.
    """
    return "" if tenant is None else _TENANT + tenant.translate(_ESCAPED) + _END


def stored_name(tenant: str | None, name: str) -> str:
    """Return the stored name of a space."""
    if tenant is not None:
        return beginning(tenant) + name
    return name if name < _PLAIN else _PLAIN_ESCAPED[name[0]] + name[1:]


def parts_of(stored: str) -> tuple[str | None, str]:
    """Decode a stored name into the tenant, or None, and the name of the space.

    Raises:
        CorruptError: It is not a stored name of keepstate.
    """
    if stored < _PLAIN:
        return None, stored
    tenant, end, name = stored[1:].partition(_END)
    if stored[0] == _TENANT and tenant and name and end:
        parts: tuple[str | None, str] = _unescaped(tenant), name
    else:
        first = {"\x01": _PLAIN, "\x02": _TENANT}.get(stored[1:2], "")
        parts = None, first + stored[2:]
    if stored_name(*parts) != stored:
        raise CorruptError(f"space {stored!r} has a name that keepstate never gives; drop it in the store")
    return parts


def tenant_beginning(stored: str) -> str | None:
    """Return the prefix of all names of the tenant of a stored name; None without a tenant."""
    return stored[: stored.index(_END) + 1] if stored.startswith(_TENANT) else None


def behind(tenant: str) -> str:
    """Return a text that sorts after all stored names of a tenant, and before those of the next tenant."""
    return beginning(tenant)[:-1] + _ESCAPE


def is_reserved(stored: str) -> bool:
    """Return whether a stored name is that of a space that keepstate made for itself."""
    name = stored.partition(_END)[2] if stored.startswith(TENANTS) else stored
    return name.startswith(RESERVED)


def is_index(stored: str) -> bool:
    """Return whether a stored name is that of an index of subjects."""
    return (stored.partition(_END)[2] if stored.startswith(TENANTS) else stored) == INDEX_SPACE


def shown(stored: str) -> str:
    """Format a stored name for messages: the name of the space, with its tenant if it has one."""
    try:
        tenant, name = parts_of(stored)
    except CorruptError:
        return ascii(stored)
    return name if tenant is None else f"{name} of tenant {tenant!r}"


def escape(text: str) -> str:
    """Encode any text as one segment of a name, without `/` and the signs that branch names may not have."""
    return text.translate(_SIGNS)


def unescape(segment: str) -> str:
    """Decode an escaped segment."""
    return unquote(segment)


def segment(text: str) -> str:
    """Encode any text as one segment of a name, of at most 56 bytes.

    A short text is escaped, and readable. A longer one becomes its beginning, `~` and its SHA-256. So other
    texts have other segments, and the empty text has one too. Keep the text itself if it must be read again.
    """
    escaped = escape(text)
    encoded = text.encode("utf-8", "surrogatepass")
    if escaped and len(escaped.encode("utf-8", "surrogatepass")) <= _SEGMENT_BYTES and _is_text(text):
        return escaped
    digest = urlsafe_b64encode(sha256(encoded).digest()).decode().rstrip("=")
    beginning = "".join(sign for sign in escaped if sign.isascii() and sign.isprintable())
    return f"{beginning[: _SEGMENT_BYTES - len(digest) - 1] or '_'}~{digest}"  # no segment begins with `~`


def shorten(label: str) -> str:
    """Return the name of a branch or stream; a name over 200 bytes is replaced by a prefix and its hash."""
    encoded = label.encode()
    if len(encoded) <= _LABEL_BYTES:
        return label
    return f"{label.partition('/')[0][:100]}/{sha256(encoded).hexdigest()}"


def _is_text(text: str) -> bool:
    return not any("\ud800" <= sign <= "\udfff" for sign in text)


def _unescaped(tenant: str) -> str:
    for code, escaped in _ESCAPED.items():
        tenant = tenant.replace(escaped, chr(code))
    return tenant
