"""Every door takes the whole id, its UUID, or the end of a recent one."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from cli.operating import full
from flowfabric.client import FlowFabric
from flowfabric.core.errors import ExecutionNotFound, FlowNotFound, InvalidInput
from flowfabric.core.ids import ExecutionId, FlowId
from support.database import home, partitions
from support.factories import NAMESPACE, Engine

ENDS = ("0190b5c2-7a3e-7c11-9d2e-{}5a6b7c8d9e", "5a6b7c8d9e")


async def submitted(engine, *heads: str) -> list[UUID]:
    """Executions whose ids end alike."""
    ids = [UUID(ENDS[0].format(head)) for head in heads]
    for id in ids:
        await engine.submit(id=id)
    return ids


@pytest.fixture
async def client(db):
    async with FlowFabric(db.url, namespace=NAMESPACE) as client:
        yield client


@pytest.mark.parametrize(
    "command",
    [
        *(("show",), ("why",), ("attempts",), ("result",), ("cancel",), ("doctor", "--explain")),
        ("events", "--since", "1h", "--execution"),
    ],
    ids=lambda command: command[0],
)
async def test_a_command_takes_an_id_in_each_form(ff, engine, command):
    (id,) = await submitted(engine, "3f")
    for text in (full(id), str(id), id.hex[-8:]):
        found = await ff(*command, text)
        assert found.code == (4 if command == ("result",) else 0), found.err
        for line in found.lines:
            assert (line["id"], line["uuid"]) == (full(id), str(id))


async def test_case_and_hyphens_do_not_count(ff, engine):
    (id,) = await submitted(engine, "3f")
    for text in (
        id.hex,
        id.hex.upper(),
        str(id)[-12:],
        str(id)[-20:].upper(),
        f"{{fp:0{home()}}}:{id}",
    ):
        assert (await ff("why", text)).line["id"] == full(id)


async def test_an_end_that_several_have_lists_them(ff, engine):
    first, second = await submitted(engine, "1f", "2f")
    found = await ff("show", ENDS[1])
    assert found.code == 2
    assert "several ids" in found.err
    for id in (first, second):
        assert f"{id} (tests.work waiting" in found.err
    assert (await ff("show", f"2f{ENDS[1]}")).line["uuid"] == str(second)


@pytest.mark.parametrize("command", [("why",), ("flow", "show"), ("cancel",)])
async def test_an_end_that_none_has_says_where_it_was_searched(ff, command):
    found = await ff(*command, ENDS[1])
    assert found.code == 3
    assert f"among the newest 10000 ends with {ENDS[1]}" in found.err


async def test_fewer_than_eight_digits_are_no_id(ff, engine):
    await submitted(engine, "3f")
    found = await ff("show", "b7c8d9e")
    assert found.code == 2
    assert "'b7c8d9e' is not an id" in found.err


async def test_an_end_is_found_in_its_own_namespace_only(ff, engine):
    other = Engine(engine.connection, namespace="other")
    (id,) = await submitted(other, "3f")
    for text in (ENDS[1], str(id)):
        assert (await ff("show", text)).code == 3
        assert (await ff("show", text, "-A")).line["uuid"] == str(id)


async def test_show_shows_a_flow_by_its_id(ff, client):
    flow = (await client.flows.create("report")).id
    uuid = flow.uuid
    for text in (str(flow), str(uuid), uuid.hex[-12:]):
        line = (await ff("show", text)).line
        assert (line["id"], line["uuid"], line["flow_kind"]) == (flow, str(uuid), "report")
        assert (await ff("flow", "show", text)).line == line
    assert "kind       report" in (await ff("show", str(uuid), "-o", "table")).out
    told = await ff("why", str(uuid))
    assert (told.code, f"{uuid}: is a flow" in told.err) == (3, True)


async def test_people_read_the_uuid(ff, engine):
    (id,) = await submitted(engine, "3f")
    for command in (
        *(("ls", "-o", "table"), ("ls", "-o", "wide"), ("show", str(id), "-o", "table")),
        *(("why", str(id), str(id), "-o", "table"), ("events", "--since", "1h", "-o", "text")),
        ("cancel", str(id), "--dry-run", "-o", "table"),
    ):
        found = await ff(*command)
        assert "{fp:" not in found.out + found.err, command
    assert "{fp:" not in (await ff("replay", str(id))).err


@pytest.mark.parametrize("partition", [0, 2])
async def test_the_partition_of_a_uuid_is_found(db, client, partition):
    await client.partitions.raise_to(max(3, partitions()))
    engine = Engine(db.conn, partition_key=partition)
    id = ExecutionId.of(partition, (await engine.submit()).id)
    for form in (id, id.uuid, str(id), str(id.uuid), id.uuid.hex):
        assert (await client.executions.describe(form)).id == id
        assert (await client.executions.find(form)) == id
    assert await client.executions.find(id.uuid.hex[-10:]) == id
    assert await client.executions.attempts(id.uuid) == []
    assert await client.steps.list(str(id.uuid)) == []
    flow = (await client.flows.create("report", id=FlowId.of(partition, uuid4()))).id
    for form in (flow, flow.uuid, str(flow.uuid)):
        assert (await client.flows.describe(form)).id == flow
    assert await client.flows.find(flow.uuid.hex[-10:]) == flow


async def test_the_client_names_the_candidates(client, engine):
    first, second = await submitted(engine, "1f", "2f")
    with pytest.raises(InvalidInput) as caught:
        await client.executions.find(ENDS[1])
    assert {id.uuid for id in caught.value.facts["matches"]} == {first, second}
    with pytest.raises(ExecutionNotFound, match="among the newest 10000"):
        await client.executions.find("0" * 8)
    with pytest.raises(FlowNotFound, match="among the newest 10000"):
        await client.flows.find(ENDS[1])
    with pytest.raises(InvalidInput, match="must be a FlowId"):
        await client.flows.describe(ExecutionId.of(home(), first))
    assert await client.executions.describe(uuid4()) is None
