"""Ask three teams to approve a deploy: two must approve, and a single denial stops it.

python examples/deploy_approval.py
"""

from __future__ import annotations

import asyncio

from flowfabric import App, ApprovalRequest, Context

app = App()
asked: dict[str, str] = {}


async def ask(request: ApprovalRequest) -> None:
    """Simulate a message to a team. Each team has its own token, so we know who answered."""
    asked[request.approver] = request.token


@app.task
async def deploy(ctx: Context, version: str) -> str:
    teams = await ctx.approval(
        f"Deploy {version}?",
        details={"version": version},
        approvers=["legal", "finance", "ops"],
        need=2,
        deny=1,
        ask=ask,
    )
    if not teams:
        return f"{version} stopped by {teams.denied_by[0]}: {teams.comments['legal']}"
    return f"{version} deployed: {' and '.join(teams.approved_by)} agreed"


async def main() -> None:
    async with app:
        await app.prepare()
        worker = asyncio.create_task(app.run_worker())
        for version, answer in (("1.0", app.approve), ("1.1", app.deny)):
            asked.clear()
            run = await deploy.submit(version)
            while len(asked) < 3:
                await asyncio.sleep(0.01)
            await app.approve(asked["ops"], by="ada")
            await answer(asked["legal"], comment="seen", by="bob")
            print(await run.result(timeout=60))
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
