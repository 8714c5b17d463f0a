"""Static files of the inspector, read once and answered without a key: they hold no data.

Files in `assets` have the digest of their content in their names, so browsers keep them. The page itself is
asked for every time, and answered by 304 while it is the same.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

PAGE: Final = "/"
_INDEX: Final = "index.html"
_TYPES: Final[Mapping[str, str]] = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_KEPT: Final = "public, max-age=31536000, immutable"
_CHECKED: Final = "no-cache"
_NO_PAGE: Final = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>keepstate</title>
<p>This server runs without the inspector: the application leaves it out, or its files are not built.
In a clone of keepstate, <code>make setup</code> builds them. <a href="openapi.json">The operations</a></p>
</html>
"""


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file, and the same compressed.

    Attributes:
        content: The bytes.
        packed: The bytes, compressed by gzip.
        media: The media type.
        tag: The `ETag`.
        cache: The `Cache-Control`.
    """

    content: bytes
    packed: bytes
    media: str
    tag: str
    cache: str

    def answer(self, request: Request) -> Response:
        """Return the response to a request."""
        headers = {"Cache-Control": self.cache, "ETag": self.tag, "Vary": "Accept-Encoding"}
        if self.tag in request.headers.get("if-none-match", ""):
            return Response(None, 304, headers)
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(self.content, 200, headers, self.media)
        return Response(self.packed, 200, {**headers, "Content-Encoding": "gzip"}, self.media)


class StaticFiles:
    """The files of the inspector by their paths; without it, one page that says so.

    Args:
        has_inspector: Whether to serve the inspector. Where its files were not built, it is not served.

    Attributes:
        has_inspector: Whether the inspector is served.
    """

    def __init__(self, *, has_inspector: bool) -> None:
        folder = files("keepstate.inspector") / "static"
        found = dict(_read(folder, "")) if has_inspector and folder.is_dir() else {}
        self.has_inspector = _INDEX in found
        page = found.pop(_INDEX, _NO_PAGE)
        self._files = {f"/{path}": _file(path, content) for path, content in found.items()}
        self._files[PAGE] = _file(_INDEX, page)

    @property
    def paths(self) -> Iterable[str]:
        """The paths, which need no key."""
        return self._files

    async def answer(self, request: Request) -> Response:
        """Answer a request for one of the paths."""
        root: str = request.scope.get("root_path", "")
        return self._files[request.scope["path"].removeprefix(root)].answer(request)


def _read(folder: Traversable, prefix: str) -> Iterable[tuple[str, bytes]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _read(each, f"{prefix}{each.name}/")
        elif any(each.name.endswith(ending) for ending in _TYPES):
            yield f"{prefix}{each.name}", each.read_bytes()


def _file(path: str, content: bytes) -> StaticFile:
    media = next(media for ending, media in _TYPES.items() if path.endswith(ending))
    tag = f'"{sha256(content).hexdigest()[:32]}"'
    cache = _CHECKED if path == _INDEX else _KEPT
    return StaticFile(content, gzip.compress(content, mtime=0), media, tag, cache)
