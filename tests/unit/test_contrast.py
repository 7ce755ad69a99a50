"""The colours of the dashboard can be read by everybody: WCAG AA, light and dark."""

from __future__ import annotations

import re

import pytest

from flowfabric.dashboard.pages import read_static

# The colours of words, on the colours behind them.
WORDS = ("text", "quiet", "link", "good", "bad", "busy", "wait", "idle")
BEHIND = ("back", "card", "soft")
LEAST = 4.5


def colours(scheme: str) -> dict[str, tuple[int, ...]]:
    """Return the colours of the style by name; the dark ones replace some of the light ones."""
    light, dark = re.findall(r":root \{(.*?)\}", read_static("style.css").decode(), re.S)
    text = light if scheme == "light" else light + dark
    found = re.findall(r"--([\w-]+): #([0-9a-f]{6})", text)
    return {name: tuple(bytes.fromhex(value)) for name, value in found}


def luminance(colour: tuple[int, ...]) -> float:
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (one / 255 for one in colour)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_what_is_behind_them(scheme):
    known = colours(scheme)
    weak = {
        (word, behind): round(contrast(known[word], known[behind]), 2)
        for word in WORDS
        for behind in BEHIND
        if contrast(known[word], known[behind]) < LEAST
    }
    assert weak == {}
    assert contrast(known["press-text"], known["press"]) >= LEAST
    # The edges of fields must be seen, too.
    assert contrast(known["edge"], known["card"]) >= 3.0
