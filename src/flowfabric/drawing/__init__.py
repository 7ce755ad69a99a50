"""Records as text: tables, lists of facts, trees, JSON, and pictures of flows.

This package only converts: records go in, text or plain data comes out. Commands print it, and HTTP
serves it.
"""

from __future__ import annotations

from flowfabric.drawing.folding import fold
from flowfabric.drawing.picture import Box, Joint, Line, Picture, picture_of
from flowfabric.drawing.svg import as_svg
from flowfabric.drawing.tree import as_tree

__all__ = ["Box", "Joint", "Line", "Picture", "as_svg", "as_tree", "fold", "picture_of"]
