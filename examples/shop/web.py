"""The web application of the shop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from flowfabric import FlowFabricError, NotFound
from shop import Base, Order, app, open_engine, process


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    async with app, open_engine() as web.state.engine:
        await app.prepare()  # in production: run flowfabric db migrate, and your own migrations
        async with web.state.engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        yield


web = FastAPI(lifespan=lifespan)


class NewOrder(BaseModel):
    mail: str
    article: str
    price: Decimal


@web.put("/orders/{reference}", status_code=202)
async def put_order(reference: str, new: NewOrder, request: Request) -> dict[str, object]:
    once = process.using(key=f"order {reference}", on_conflict="existing")
    async with AsyncSession(request.app.state.engine) as session, session.begin():
        order = insert(Order).values(reference=reference, **new.model_dump())
        await session.execute(order.on_conflict_do_nothing())
        run = await once.using(via=session).submit(reference)
    return {"run": run.id, "is_new": not run.is_duplicate}


@web.get("/orders/{reference}")
async def get_order(reference: str) -> dict[str, str]:
    run = await app.get_by_key(f"order {reference}")
    return {"run": run.id, "state": await run.state()}


@web.exception_handler(FlowFabricError)
async def refuse(_: Request, error: FlowFabricError) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 404 if isinstance(error, NotFound) else 503)
