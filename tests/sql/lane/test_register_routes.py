"""ff.register_routes: lanes, routes, and what a requirement may look like."""

from __future__ import annotations

from hashlib import sha256

import pytest

from support.factories import refused

GOOD = ("team", "mail", "mail.send", "")


async def problems(engine, name, values):
    """The field and problem of each value of one part, after a look that nothing was stored."""
    good = dict(zip(("namespace", "lane", "task", "capabilities"), GOOD, strict=True))
    rows = await engine.register_many([tuple((good | {name: value}).values()) for value in values])
    assert [row["item"] for row in rows] == list(range(1, len(values) + 1))
    assert {(row["outcome"], row["route_id"]) for row in rows} == {("invalid", None)}
    assert await engine.connection.fetchval("select count(*) from ff.route") == 0
    assert await engine.connection.fetchval("select count(*) from ff.lane") == 0
    return [(row["detail"]["field"], row["detail"]["problem"]) for row in rows]


async def test_a_route_and_its_lane_are_stored(db, clock, engine):
    now = await clock.freeze()
    (row,) = await engine.register_many([("team", "mail", "mail.send", "smtp,gpu")])
    assert row["outcome"] == "registered"
    assert 0 <= row["route_id"] < 2**63
    (route,) = await db.fetch("select * from ff.route")
    assert dict(route) == {
        "route_id": row["route_id"],
        "namespace": "team",
        "lane": "mail",
        "task": "mail.send",
        "capabilities": ["gpu", "smtp"],
        "registered_at": now,
        "code_version": None,
        "is_limited": False,
    }
    (lane,) = await db.fetch("select * from ff.lane")
    assert dict(lane) == {
        "namespace": "team",
        "lane": "mail",
        "state": "active",
        "resumes_at": None,
        "registered_at": now,
        "registered_by": "submit_executions",
        "changed_at": None,
        "changed_by": None,
        "reason": None,
        "retention": None,
        "declared": None,
        "options": None,
        "gate_id": None,
        "weights": None,
    }


async def test_the_registrar_of_a_lane_is_recorded_once(db):
    for registrar in ("boot", "later"):
        await db.execute(
            "select ff.register_routes(p_namespaces => '{t}', p_lanes => '{l}', p_tasks => '{w}', "
            "p_capabilities => '{\"\"}', p_registered_by => $1)",
            registrar,
        )
    assert await db.fetchval("select registered_by from ff.lane") == "boot"


async def test_the_same_route_gets_the_same_id_again_and_is_stored_once(db, engine):
    first = await engine.register_many([GOOD, GOOD])
    again = await engine.register_many([GOOD])
    assert len({row["route_id"] for row in first + again}) == 1
    assert {row["outcome"] for row in first + again} == {"registered"}
    assert await db.fetchval("select count(*) from ff.route") == 1


async def test_order_and_repetition_of_capabilities_do_not_matter(db, engine):
    rows = await engine.register_many(
        [("t", "l", "w", "gpu,cuda"), ("t", "l", "w", "cuda,gpu"), ("t", "l", "w", "gpu,cuda,gpu")]
    )
    assert len({row["route_id"] for row in rows}) == 1
    assert await db.fetchval("select capabilities from ff.route") == ["cuda", "gpu"]


async def test_each_part_of_a_route_makes_another_one(engine):
    routes = [
        ("t", "l", "w", ""),
        ("u", "l", "w", ""),
        ("t", "m", "w", ""),
        ("t", "l", "x", ""),
        ("t", "l", "w", "gpu"),
        ("t", "l", "w", "GPU"),
        ("t", "l", "w", "gpu,cuda"),
    ]
    rows = await engine.register_many(routes)
    assert len({row["route_id"] for row in rows}) == len(routes)
    assert [row["item"] for row in rows] == list(range(1, len(routes) + 1))


async def test_no_requirement_may_be_written_as_null(engine):
    rows = await engine.register_many([("t", "l", "w", ""), ("t", "l", "w", None)])
    assert rows[0]["route_id"] == rows[1]["route_id"]


async def test_the_id_is_the_documented_hash(engine):
    """Namespace, lane, task, sorted capabilities and code version, joined by \\x01."""
    (row,) = await engine.register_many([("t", "l", "w", "gpu,cuda")])
    digest = sha256(b"\x01".join([b"t", b"l", b"w", b"cuda,gpu"])).digest()
    assert row["route_id"] == int.from_bytes(digest[:8], "big") & (2**62 - 1)


async def test_a_lane_that_is_paused_stays_paused(db, engine):
    await engine.register_many([GOOD])
    await db.execute("update ff.lane set state = 'paused'")
    await engine.register_many([GOOD, ("team", "mail", "mail.other", "")])
    assert await db.fetchval("select state from ff.lane") == "paused"


async def test_a_namespace_is_a_short_word(engine):
    bad = [None, "", "a b", "a\tb", "a\x01", "a\x7f", "é" * 129]
    assert {field for field, _ in await problems(engine, "namespace", bad)} == {"namespace"}


async def test_a_lane_is_up_to_64_bytes_of_printable_ascii(engine):
    bad = [None, "", "lan\ne", "\tx", "xy\x7f", "läne", "é" * 64, "trailing\n", "x" * 65]
    found = await problems(engine, "lane", bad)
    assert {field for field, _ in found} == {"lane"}
    assert found[-1] == ("lane", "is 65 bytes long; at most 64 are allowed")


async def test_a_task_is_a_short_word(engine):
    bad = [None, "", "a b", "a\nb", "x" * 257, "tab\t"]
    assert {field for field, _ in await problems(engine, "task", bad)} == {"task"}


async def test_a_requirement_that_cannot_be_read_is_refused(engine):
    """Fails closed: an empty requirement means that anyone may claim."""
    expected = {
        "a,,b": "required:empty_token",
        ",": "required:empty_token",
        ",gpu": "required:empty_token",
        "gpu,": "required:empty_token",
        " ": "required:control_or_whitespace",
        "big gpu": "required:control_or_whitespace",
        "gpu\t": "required:control_or_whitespace",
        "gpu\n": "required:control_or_whitespace",
        "a,b\x01": "required:control_or_whitespace",
        "a\x7f": "required:control_or_whitespace",
        ",".join(f"c{n}" for n in range(257)): "required:too_many_tokens",
        "x" * 4097: "required:too_many_bytes",
        "é" * 2049: "required:too_many_bytes",
    }
    found = await problems(engine, "capabilities", list(expected))
    assert found == [("capabilities", words) for words in expected.values()]


async def test_what_is_just_within_the_limits_is_accepted(engine):
    rows = await engine.register_many(
        [
            ("n" * 256, "l", "w", ""),
            ("t", "x", "w", ""),
            ("t", "x" * 64, "w", ""),
            ("t", " ~", "w", ""),
            ("t", "l", "w" * 256, ""),
            ("t", "l", "w", ",".join(f"c{n}" for n in range(256))),
            ("t", "l", "w", "x" * 4096),
            ("t", "l", "w", "größe,torch>=2.3"),
            ("té", "l", "tâche", ""),
        ]
    )
    assert {row["outcome"] for row in rows} == {"registered"}


@pytest.mark.parametrize("name", [None, "", "x" * 257, "a\nb"])
async def test_whoever_registers_has_a_name(db, name):
    with refused("WF001", field="registered_by"):
        await db.fetch(
            "select * from ff.register_routes('{t}', '{l}', '{w}', '{}', p_registered_by => $1)",
            name,
        )
    assert await db.fetchval("select count(*) from ff.lane") == 0


async def test_a_refused_item_harms_no_other(db, engine):
    rows = await engine.register_many(
        [("t", "b", "w", ""), ("t", "", "w", ""), ("t", "a", "w", "")]
    )
    assert [row["outcome"] for row in rows] == ["registered", "invalid", "registered"]
    assert rows[1]["detail"] == {"field": "lane", "problem": "must not be empty"}
    assert await db.fetchval("select array_agg(lane order by lane) from ff.lane") == ["a", "b"]


async def test_two_routes_with_one_hash_are_refused(db, engine):
    await engine.register_many([GOOD])
    await db.execute("update ff.route set task = 'mail.receive'")
    with refused("WF402", message="route_collision", taken_by="mail.receive"):
        await engine.register_many([GOOD])
