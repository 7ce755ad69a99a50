"""A deploy approval: two of three teams must agree, and anybody may stop it.

python examples/deploy_approval.py
"""

from __future__ import annotations

import asyncio

from flowfabric import App, Context, answer, at_least

app = App()
asked: dict[str, str] = {}


async def ask(team: str, token: str) -> None:
    """A simulated message to a team, with its own token: so we know who answered."""
    asked[team] = token


@app.task
async def deploy(ctx: Context, version: str) -> str:
    teams = [await ctx.waitpoint(team) for team in ("legal", "finance", "ops")]
    for team in teams:
        await ctx.step(f"ask {team.key}", ask, team.key, team.token)
    votes = await ctx.wait_for(
        at_least(2, *(answer(team, bool) for team in teams), distinct="waitpoints")
    )
    return f"{version} {'deployed' if all(votes) else 'stopped'}"


async def main() -> None:
    async with app:
        await app.prepare()
        worker = asyncio.create_task(app.run_worker())
        for version, second in (("1.0", True), ("1.1", False)):
            asked.clear()
            run = await deploy.submit(version)
            while len(asked) < 3:
                await asyncio.sleep(0.01)
            await app.signal(asked["ops"], True, by="ada")
            await app.signal(asked["legal"], second, by="bob")
            print(await run.result(timeout=60))
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
