"""FastAPI: store a customer and submit the welcome mail in one transaction. Either both are stored
or neither is.

    pip install fastapi uvicorn 'sqlalchemy[asyncio]'
    export FLOWFABRIC_DATABASE_URL=postgresql://localhost/shop
    cd examples && uvicorn fastapi_app:web & flowfabric worker fastapi_app:app
    curl localhost:8000/customers --json '{"mail": "ada@example.org"}'
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from flowfabric import App, ExecutionId, NotFound

app = App()


@app.task(lane="mail")
async def welcome(customer_id: int, mail: str) -> str:
    return f"welcomed customer {customer_id} at {mail}"


class Base(DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "customer"
    id: Mapped[int] = mapped_column(primary_key=True)
    mail: Mapped[str] = mapped_column(unique=True)


database_url = os.environ["FLOWFABRIC_DATABASE_URL"]
engine = create_async_engine(database_url.replace("postgresql://", "postgresql+asyncpg://", 1))
sessions = async_sessionmaker(engine, expire_on_commit=False)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    await app.prepare()  # in production: flowfabric db migrate, before the rollout
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await app.close()
    await engine.dispose()


web = FastAPI(lifespan=lifespan)


class NewCustomer(BaseModel):
    mail: str


@web.post("/customers", status_code=201)
async def sign_up(new: NewCustomer) -> dict[str, str]:
    # Commit here, not in a dependency with `yield`: FastAPI would commit after sending the
    # response.
    async with sessions.begin() as session:
        customer = Customer(mail=new.mail)
        session.add(customer)
        await session.flush()
        run = await welcome.using(via=session).submit(customer.id, new.mail)
        if not new.mail.count("@"):
            # The customer and the mail are rolled back together.
            raise HTTPException(422, "this is not a mail address")
    return {"run": run.id}


@web.get("/runs/{run_id}")
async def state(run_id: str) -> dict[str, str]:
    try:
        return {"state": await app.get(ExecutionId.parse(run_id)).state()}
    except NotFound as error:
        raise HTTPException(404, str(error)) from error
