"""Pictures of the page that the documents show, compared with what the page shows now.

They are WebP, which the browser itself writes and reads. A comparison halves both pictures, so that the edges
of letters count little, and tolerates `TOLERATED` of the points: ids of commits differ from run to run.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "inspector"
RENEW: Final = "python -m pytest -n 0 tests/browser/test_tour.py --new-pictures"
TOLERATED: Final = 0.02
QUALITY: Final = 0.82
MOST_BYTES: Final = 1_500_000
"""The size of all pictures together."""

_CODE: Final = """async ([png, webp, quality]) => {
  const load = async (url) => {
    const image = new Image();
    image.src = url;
    await image.decode();
    return image;
  };
  const draw = (image, scale) => {
    const canvas = document.createElement("canvas");
    canvas.width = Math.round(image.width * scale);
    canvas.height = Math.round(image.height * scale);
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.imageSmoothingQuality = "high";
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    return [canvas, context.getImageData(0, 0, canvas.width, canvas.height)];
  };
  const shown = await load("data:image/png;base64," + png);
  const made = draw(shown, 1)[0].toDataURL("image/webp", quality).split(",")[1];
  if (!webp) return { made, share: 1 };
  const kept = await load("data:image/webp;base64," + webp);
  if (kept.width !== shown.width || kept.height !== shown.height) return { made, share: 1 };
  const [a, b] = [draw(shown, 0.5)[1].data, draw(kept, 0.5)[1].data];
  let differ = 0;
  const gap = (at) => Math.abs(a[at] - b[at]);
  for (let at = 0; at < a.length; at += 4) differ += gap(at) + gap(at + 1) + gap(at + 2) > 72;
  return { made, share: differ / (a.length / 4) };
}"""


@dataclass
class Pictures:
    """Takes pictures and compares them.

    Attributes:
        elsewhere: The folder for pictures that differ.
        renews: Whether to write the pictures of the documents instead.
    """

    browser: Browser
    elsewhere: Path
    renews: bool
    _table: Page | None = None

    async def take(self, page: Page, name: str, **clip: Any) -> None:
        """Compare what a page shows with the picture of this name; fails if they differ."""
        png = await page.screenshot(animations="disabled", caret="hide", **clip)
        path = FOLDER / f"{name}.webp"
        kept = path.read_bytes() if path.exists() else b""
        made, share = await self.compare(png, kept)
        if self.renews:
            if share > TOLERATED / 10:
                FOLDER.mkdir(exist_ok=True)
                path.write_bytes(made)
            return
        if share > TOLERATED:
            other = self.elsewhere / path.name
            other.write_bytes(made)
            raise AssertionError(
                f"{share:.1%} of {path.name} differ from what the page shows, which is now in {other}. "
                f"If it is right: {RENEW}"
            )

    async def compare(self, png: bytes, webp: bytes) -> tuple[bytes, float]:
        """Return the picture as WebP, and the share of points in which it differs from another one."""
        if self._table is None:
            self._table = await self.browser.new_page()
        given = [base64.b64encode(png).decode(), base64.b64encode(webp).decode(), QUALITY]
        told = await self._table.evaluate(_CODE, given)
        return base64.b64decode(told["made"]), float(told["share"])

    async def close(self) -> None:
        """Close the page that compares."""
        if self._table is not None:
            await self._table.context.close()
