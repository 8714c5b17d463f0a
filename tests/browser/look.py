"""Takes pictures of places for a person to look at: `python -m tests.browser.look FOLDER STORE PLACE…`.

Each place is shown in light and dark, wide, and narrow. `STORE` is one of those that tests serve.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.browser.conftest import STORES, Tabs, loaded, serve_stores
from tests.browser_fixtures import Chromium

SHAPES = {"light": ("light", 1280, 800), "dark": ("dark", 1280, 800), "narrow": ("light", 360, 740)}


def main(folder: str, store: str, *places: str) -> None:
    """Take the pictures; says what goes wrong in a page."""
    assert store in STORES, STORES
    to = Path(folder)
    to.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as made, serve_stores(Path(made), (store,)) as stores:
        chromium = Chromium()
        tabs = Tabs(chromium, stores)
        try:
            chromium.run(look(tabs, to, store, places))
            chromium.run(tabs.close())
        finally:
            chromium.close()


async def look(tabs: Tabs, folder: Path, store: str, places: tuple[str, ...]) -> None:
    """Take the pictures of each place."""
    for number, place in enumerate(places or ("",)):
        for shape, (scheme, width, height) in SHAPES.items():
            page = await tabs.open(store, place, scheme=scheme, width=width, height=height)
            await asyncio.sleep(0.2)
            await loaded(page)
            await page.screenshot(path=folder / f"{number}-{shape}.png")
            overflow = await page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
            print(f"{folder}/{number}-{shape}.png", place, "" if overflow <= 0 else f"{overflow} px too wide")
            await page.context.close()
            tabs.contexts.remove(page.context)


if __name__ == "__main__":
    main(*sys.argv[1:])
