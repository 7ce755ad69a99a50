"""Flows as pictures: a layered drawing as SVG, and a tree for the terminal.

Everything here is pure: a `Picture` goes in, text comes out, and the same picture always gives the
same text.
"""

from __future__ import annotations

from flowfabric.drawing.folding import fold
from flowfabric.drawing.picture import Box, Joint, Line, Picture, picture_of
from flowfabric.drawing.svg import as_svg
from flowfabric.drawing.tree import as_tree

__all__ = ["Box", "Joint", "Line", "Picture", "as_svg", "as_tree", "fold", "picture_of"]
