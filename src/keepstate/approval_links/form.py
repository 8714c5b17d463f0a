"""The page that a link leads to: static, the same for every link, so a GET tells nothing of any approval.

Its script reads the token from the fragment and sends it in the body of a POST. The policy of the page allows
this script and these styles only, by their hashes, and no request but to its own origin.
"""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Final

_NO_TRACE: Final = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-robots-tag": "noindex",
}
JSON_HEADERS: Final = {
    "content-type": "application/json",
    **_NO_TRACE,
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
"""The headers of every response to a POST."""


def form() -> tuple[dict[str, str], str]:
    """Return the headers and the HTML of the page, for a response to GET. Both are always the same."""
    policy, html = _page()
    headers = {
        "content-type": "text/html; charset=utf-8",
        **_NO_TRACE,
        "content-security-policy": policy,
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=()",
        "x-frame-options": "DENY",
    }
    return headers, html


@cache
def _page() -> tuple[str, str]:
    html, style, script = (_text(f"page.{kind}") for kind in ("html", "css", "js"))
    policy = "; ".join((
        "default-src 'none'",
        f"script-src '{_hash(script)}'",
        f"style-src '{_hash(style)}'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ))  # fmt: skip
    return policy, html.replace("/* STYLE */", style).replace("/* SCRIPT */", script)


def _text(name: str) -> str:
    return files("keepstate.approval_links").joinpath(name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
