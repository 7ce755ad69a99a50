"""What differs for commands through a server: the actor, the scope, the namespace."""

# ruff: noqa: F811
from __future__ import annotations

from cli.operating import full
from server.remote import RemoteCommands, ff, world  # noqa: F401
from support.factories import NAMESPACE
from worker.apps import working


async def test_the_actor_is_the_token_not_who_types(ff, make, engine):
    execution = await make.execution("waiting")
    assert (await ff("cancel", full(execution.id), "--actor", "root")).code == 0
    assert (await engine.events(execution.id))[-1]["actor"].startswith("token tests (ffp_")


async def test_a_token_without_the_scope_ends_with_four_and_names_it(world, serving, make):
    execution = await make.execution("waiting")
    ff = RemoteCommands(serving, await world.token("read", namespace=NAMESPACE))
    found = await ff("cancel", full(execution.id))
    assert found.code == 4
    assert "scope=operate" in found.out
    assert (await ff("ls")).line["public_state"] == "waiting"


async def test_another_namespace_than_that_of_the_token_is_refused(ff):
    found = await ff("ls", "-n", "elsewhere")
    assert found.code == 4
    assert f"The token is for the namespace {NAMESPACE}, not elsewhere" in found.err


async def test_a_command_that_needs_a_database_says_so(ff):
    for command in (["db", "status"], ["doctor"], ["namespace", "ls"]):
        found = await ff(*command)
        assert found.code in (2, 4), command
        assert "needs a database" in found.err or "not offered over HTTP" in found.err, command


async def test_the_option_wins_over_the_environment(ff, serving, make):
    await make.execution("waiting")
    found = await ff("ls", "--url", serving, url="http://127.0.0.1:9")
    assert (found.code, found.line["public_state"]) == (0, "waiting")
    assert (await ff("ls", url="http://127.0.0.1:9")).code == 5
    found = await ff("ls", "--url", serving, "--database-url", "postgresql://x/y")
    assert (found.code, "cannot be combined" in found.err) == (2, True)
    found = await ff("ls", "--url", "nowhere")
    assert (found.code, "must be an address" in found.err) == (2, True)


async def test_submit_waits_for_the_result_through_the_server(ff, world, folder, monkeypatch):
    @world.app.task(name="shop.double")
    async def double(x: int) -> int:
        return 2 * x

    (folder / "shop_over_http.py").write_text(
        "from flowfabric import App\n"
        f"app = App(name='shop', namespace={NAMESPACE!r})\n"
        "@app.task(name='shop.double')\n"
        "async def double(x: int) -> int:\n"
        "    raise AssertionError('this process only submits')\n"
    )
    monkeypatch.syspath_prepend(folder)
    async with working(world.app):
        found = await ff("submit", "shop_over_http:double", "21", "--wait", "--timeout", "60s")
    assert (found.code, found.out.strip()) == (0, "42"), found.err
