"""Plots of how something grows, as SVG."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import log10

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 250, 40, 50
MODES = ("#0b7285", "#c92a2a", "#5f3dc4", "#868e96", "#e67700")
LABEL_HEIGHT = 16

Line = Sequence[tuple[int, float]]


def plotted(points: Mapping[str, Sequence[tuple[int, int]]], turns: int, content_bytes: int) -> str:
    """Return the picture of bytes on disk by turn, and of what the content has.

    Args:
        points: Turn and bytes, of each saver.
        turns: Where the scale of turns ends.
        content_bytes: How much was said by then.
    """
    first = next(iter(points.values()))
    said = "what was said"
    lines = {**points, said: [(turn, content_bytes * turn // turns) for turn, _ in first]}
    return drawn("Bytes on disk by turn: one thread, 500 bytes a turn", lines, _bytes, dashed={said})


def drawn(
    title: str, lines: Mapping[str, Line], told: Callable[[float], str], *, dashed: Collection[str] = ()
) -> str:
    """Return a picture of what grows by turns, on a scale of powers of ten.

    Args:
        title: What is seen.
        lines: Turn and value, by name. What agrees before a comma has one colour.
        told: Returns a value in words.
        dashed: Names of lines that are dashed.
    """
    values = [value for line in lines.values() for _, value in line]
    turns = max(turn for line in lines.values() for turn, _ in line)
    lowest = 10.0 ** (len(str(int(min(values)))) - 1)
    highest = max(max(values) * 1.5, lowest * 10)

    def across(turn: int) -> float:
        return LEFT + turn / turns * (WIDTH - LEFT - RIGHT)

    def up(value: float) -> float:
        return HEIGHT - BOTTOM - log10(value / lowest) / log10(highest / lowest) * (HEIGHT - TOP - BOTTOM)

    font = 'font-family="system-ui, sans-serif" font-size="13"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {font}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" font-weight="bold">{title}</text>',
    ]
    for value in _marked(lowest, highest):
        ends = f'x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up(value):.1f}" y2="{up(value):.1f}"'
        parts += [
            f'<line {ends} stroke="#dee2e6"/>',
            f'<text x="{LEFT - 8}" y="{up(value) + 4:.1f}" text-anchor="end">{told(value)}</text>',
        ]
    for turn in range(0, turns + 1, max(1, turns // 5)):
        place = f'x="{across(turn):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle"'
        parts.append(f"<text {place}>{turn:,}</text>")
    heights = _apart({name: up(line[-1][1]) for name, line in lines.items()})
    kinds = list(dict.fromkeys(name.partition(",")[0] for name in lines))
    for name, line in lines.items():
        mode = MODES[kinds.index(name.partition(",")[0]) % len(MODES)]
        path = " ".join(f"{across(turn):.1f},{up(value):.1f}" for turn, value in line)
        dashes = ' stroke-dasharray="4 4"' if name in dashed else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{mode}" stroke-width="2.5"{dashes}/>')
        place = f'x="{across(line[-1][0]) + 8:.1f}" y="{heights[name] + 4:.1f}" fill="{mode}"'
        parts.append(f"<text {place}>{name}: {told(line[-1][1])}</text>")
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">turns</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _marked(lowest: float, highest: float) -> list[float]:
    """Return the values that get a line: powers of ten, and where they are few, two and five times them."""
    powers = [lowest * 10**n for n in range(int(log10(highest / lowest)) + 1)]
    if len(powers) > 3:
        return powers
    return [each for power in powers for each in (power, 2 * power, 5 * power) if each <= highest]


def _apart(heights: Mapping[str, float]) -> dict[str, float]:
    """Return where labels stand, so that none covers another: as near as can be to where their lines end."""
    stacks: list[tuple[float, list[str]]] = []
    for name, height in sorted(heights.items(), key=lambda item: item[1]):
        stacks.append((height, [name]))
        while len(stacks) > 1:
            (above, names), (below, more) = stacks[-2:]
            if below - above >= LABEL_HEIGHT * (len(names) + len(more)) / 2:
                break
            both = names + more
            stacks[-2:] = [((above * len(names) + below * len(more)) / len(both), both)]
    placed = {
        name: middle + LABEL_HEIGHT * (place - (len(names) - 1) / 2)
        for middle, names in stacks
        for place, name in enumerate(names)
    }
    too_low = max(0.0, max(placed.values()) - (HEIGHT - BOTTOM))
    return {name: height - too_low for name, height in placed.items()}


def _bytes(size: float) -> str:
    for unit, each in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= each:
            return f"{size / each:.3g} {unit}"
    return f"{size:.0f} B"
