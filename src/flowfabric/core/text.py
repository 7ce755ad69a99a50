"""Make text from users safe for terminals and logs."""

from __future__ import annotations

import unicodedata

# Unicode categories: control characters, invisible marks (such as text direction), surrogates, and
# line and paragraph separators.
_HARMFUL = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def printable(text: str, *, lines: bool = False) -> str:
    """Put a text on one line, and replace characters that could control the terminal.

    If `lines` is true, line ends and tabs stay in the text.
    """
    if text.isprintable():
        return text
    return "".join(ch if ch.isprintable() else _replaced(ch, lines) for ch in text)


def _replaced(ch: str, lines: bool) -> str:
    if ch in "\n\t" and lines:
        return ch
    if ch in "\n\r\t":
        return " "
    return "?" if unicodedata.category(ch) in _HARMFUL else ch
