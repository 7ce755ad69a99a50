"""`flowfabric check`: what would be held after a deploy, and the exit code that stops one."""

from __future__ import annotations

import sys
from datetime import timedelta

import pytest

from flowfabric import Context, PublicState
from steps.stage import until
from support.factories import NAMESPACE
from worker.apps import working

MODULE = """
from datetime import timedelta
from flowfabric import App, Context

app = App()

@app.task(name="shop.order")
async def order(ctx: Context) -> None:
    await ctx.step("{first}", len, "text")
    await ctx.sleep(timedelta(hours=1))
    await ctx.step("new", len, "text")
"""


@pytest.mark.parametrize(
    ("first", "code", "summary", "table"),
    [
        ("charge", 0, "1 execution would continue, 0 would be held", None),
        (
            "bill",
            1,
            "0 executions would continue, 1 would be held",
            "shop.order held charge the code runs 'bill' where this was recorded",
        ),
    ],
)
async def test_executions_that_would_be_held_are_listed(
    make_app, ff, tmp_path, monkeypatch, first, code, summary, table
):
    app = make_app(namespace=NAMESPACE)

    @app.task(name="shop.order")
    async def order(ctx: Context) -> None:
        await ctx.step("charge", len, "text")
        await ctx.sleep(timedelta(hours=1))

    async with working(app):
        run = await order.submit()
        await until(run, PublicState.DELAYED)
    module = f"checked_{first}"
    (tmp_path / f"{module}.py").write_text(MODULE.format(first=first))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, module, raising=False)

    found = await ff("check", f"{module}:app", "-o", "table")
    assert (found.code, found.err.strip()) == (code, summary)
    assert (table or "") in " ".join(found.out.split())
    assert found.out == "" if table is None else str(run.id.uuid) in found.out

    (line,) = (await ff("check", f"{module}:app", "-o", "json")).lines
    assert line["fit"] == ("held" if code else "continues")
