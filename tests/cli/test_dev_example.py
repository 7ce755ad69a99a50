"""The command that `flowfabric dev` prints to try a task."""

from __future__ import annotations

import sys
from types import ModuleType

from flowfabric import App
from flowfabric.cli.dev.child import app_facts


def test_the_example_has_values_that_the_task_takes(monkeypatch):
    app = App(name="shop")

    @app.task(name="shop.add_up")
    async def add_up(lines: list[int], names: dict[str, str], discount: int) -> int: ...

    shop = ModuleType("shop")
    shop.add_up = add_up
    monkeypatch.setitem(sys.modules, "shop", shop)

    assert app_facts(app, "shop:app")["example"] == (
        """flowfabric submit shop:add_up '{"lines": [], "names": {}, "discount": 1}' --wait"""
    )
