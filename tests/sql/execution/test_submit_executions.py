"""ff.submit_executions: what is stored, what is refused, and what a repeat gets."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from support.database import home
from support.factories import Engine, Item, new_id, options_of, refused
from support.hints import hints

MIB = 1024 * 1024
KEYED = Item(key="k", fingerprint=b"f")


async def body(db, id_):
    return await db.fetchrow("select * from ff.execution_body where execution_id = $1", id_)


async def field_of(engine, **fields):
    """The field that one refused item names, after a look that nothing was stored."""
    answer = await engine.submit(**fields)
    assert answer.word == "invalid", answer
    assert answer.detail["problem"]
    assert await engine.rows() == []
    assert await engine.events() == []
    assert await engine.connection.fetchval("select count(*) from ff.execution_body") == 0
    assert await engine.connection.fetchval("select count(*) from ff.idempotency_key") == 0
    return answer.detail["field"]


# What is stored


async def test_an_execution_is_stored_runnable_and_eligible_with_its_event(clock, engine):
    now = await clock.freeze()
    route = await engine.register()
    answer = await engine.submit(route=route, payload=b"[1]", encoding="json")
    assert answer.word == "created"
    row = await engine.row(answer.id)
    assert (row["phase"], row["ownership"], row["eligibility"]) == (
        "runnable",
        "unowned",
        "eligible_now",
    )
    assert (row["blocking_reason"], row["outcome"], row["attempt_state"], row["cause"]) == (
        "waiting_for_worker",
        "none",
        "pending_first_attempt",
        "submit",
    )
    assert row["public_state"] == "waiting"
    assert (row["version"], row["epoch"], row["rank"]) == (1, 0, 9000)
    assert (row["total_attempt_count"], row["retry_count"], row["reclaim_count"]) == (0, 0, 0)
    assert row["max_reclaims"] == 100
    assert row["created_at"] == row["transitioned_at"] == row["mutated_at"] == now
    assert (row["payload"], row["payload_encoding"], row["route_id"]) == (b"[1]", "json", route)
    assert row["attempt_id"] is row["lease_id"] is row["due_at"] is row["started_at"] is None
    (event,) = await engine.events(answer.id)
    assert (event["kind"], event["version"], event["occurred_at"]) == ("submitted", 1, now)
    assert (event["route_id"], event["namespace"]) == (route, "test")
    assert event["lease_id"] is event["outcome"] is event["attempt_index"] is None


async def test_a_plain_execution_has_no_body_row(db, engine):
    answer = await engine.submit(payload=b"x" * 256)
    assert await body(db, answer.id) is None


@pytest.mark.parametrize("size", [0, 1, 256])
async def test_a_small_payload_rides_on_the_row(db, engine, size):
    answer = await engine.submit(payload=b"x" * size)
    assert (await engine.row(answer.id))["payload"] == b"x" * size
    assert await body(db, answer.id) is None


@pytest.mark.parametrize("size", [257, MIB])
async def test_a_larger_payload_goes_to_the_body(db, engine, size):
    answer = await engine.submit(payload=b"x" * size)
    assert answer.word == "created"
    assert (await engine.row(answer.id))["payload"] is None
    assert (await body(db, answer.id))["payload"] == b"x" * size


async def test_a_payload_may_be_missing_and_is_never_parsed(engine):
    nothing = await engine.submit(payload=None)
    rubbish = await engine.submit(payload=b"\x00\xff{", encoding="json")
    assert (await engine.row(nothing.id))["payload"] is None
    assert (await engine.row(rubbish.id))["payload"] == b"\x00\xff{"


async def test_policy_tags_and_creator_are_kept_in_the_body(db, engine):
    answer = await engine.submit(
        policy={"max_reclaim_count": 3, "timeout_policy": {"attempt_timeout_ms": 1500}},
        tags={"team.field": "v"},
        creator="alice",
    )
    kept = await body(db, answer.id)
    assert json.loads(kept["policy"])["max_reclaim_count"] == 3
    assert json.loads(kept["tags"]) == {"team.field": "v"}
    assert (kept["creator"], kept["payload"]) == ("alice", None)
    row = await engine.row(answer.id)
    assert row["max_reclaims"] == 3
    assert row["attempt_timeout"] == timedelta(milliseconds=1500)


async def test_a_limit_of_reclaims_may_be_given_without_a_policy(db, engine):
    own, both, policy = await engine.submit_many(
        [
            Item(max_reclaims=7),
            Item(max_reclaims=8, policy={"max_reclaim_count": 9}),
            Item(policy={"max_reclaim_count": 9}),
        ]
    )
    assert [(await engine.row(answer.id))["max_reclaims"] for answer in (own, both, policy)] == [
        7,
        8,
        9,
    ]
    assert await body(db, own.id) is None


async def test_priority_is_clamped(engine):
    ranks = {
        None: 9000,
        0: 9000,
        50: 8950,
        9000: 0,
        9001: 0,
        10000: 0,
        -5: 9000,
        2**31 - 1: 0,
        -(2**31): 9000,
    }
    answers = await engine.submit_many([Item(priority=priority) for priority in ranks])
    stored = [(await engine.row(answer.id))["rank"] for answer in answers]
    assert stored == list(ranks.values())


async def test_the_configured_tag_is_copied_to_row_and_event(db, engine):
    await db.execute("update ff.meta set value = 'app.instance' where name = 'instance_tag_key'")
    tagged, other = await engine.submit_many(
        [Item(tags={"app.instance": "blue", "a.b": "c"}), Item(tags={"a.b": "c"})]
    )
    assert (await engine.row(tagged.id))["instance_tag"] == "blue"
    assert (await engine.events(tagged.id))[0]["instance_tag"] == "blue"
    assert (await engine.row(other.id))["instance_tag"] is None


# Delays and deadlines


async def test_a_delayed_execution_waits_for_its_time(clock, engine):
    now = await clock.freeze()
    answer = await engine.submit(delay=timedelta(minutes=5))
    row = await engine.row(answer.id)
    assert (row["eligibility"], row["blocking_reason"], row["public_state"]) == (
        "not_eligible_until_time",
        "waiting_for_delay",
        "delayed",
    )
    assert row["attempt_state"] == "pending_first_attempt"
    assert row["delayed_until"] == row["due_at"] == now + timedelta(minutes=5)
    assert await engine.claim() == []
    await clock.advance(minutes=5)
    await engine.promote()
    assert await engine.take(answer.id)


async def test_a_moment_wins_over_a_delay(clock, engine):
    now = await clock.freeze()
    answer = await engine.submit(
        delay=timedelta(minutes=5), delayed_until=now + timedelta(minutes=9)
    )
    assert (await engine.row(answer.id))["delayed_until"] == now + timedelta(minutes=9)


async def test_a_delay_into_the_past_is_none(engine):
    answers = await engine.submit_many(
        [
            Item(delay=timedelta()),
            Item(delay=timedelta(minutes=-5)),
            Item(delayed_until=datetime(2001, 1, 1, tzinfo=UTC)),
            Item(delayed_until=datetime.min.replace(tzinfo=UTC)),
        ]
    )
    for answer in answers:
        row = await engine.row(answer.id)
        assert row["eligibility"] == "eligible_now"
        assert row["delayed_until"] is row["due_at"] is None


async def test_a_delay_until_this_very_moment_is_none(clock, engine):
    now = await clock.freeze()
    answer = await engine.submit(delayed_until=now)
    assert (await engine.row(answer.id))["eligibility"] == "eligible_now"


async def test_a_deadline_is_stored_apart_from_the_delay(clock, engine):
    now = await clock.freeze()
    after, at, both, none = await engine.submit_many(
        [
            Item(deadline=timedelta(hours=1), delay=timedelta(minutes=1)),
            Item(deadline_at=now + timedelta(hours=2)),
            Item(deadline=timedelta(hours=1), deadline_at=now + timedelta(hours=3)),
            Item(),
        ]
    )
    deadlines = [(await engine.row(answer.id))["deadline_at"] for answer in (after, at, both, none)]
    assert deadlines == [
        now + timedelta(hours=1),
        now + timedelta(hours=2),
        now + timedelta(hours=3),
        None,
    ]
    assert (await engine.row(after.id))["delayed_until"] == now + timedelta(minutes=1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("delay", timedelta.max),
        ("delay", timedelta.min),
        ("deadline", timedelta.max),
        ("deadline", timedelta.min),
        ("delayed_until", datetime.max.replace(tzinfo=UTC)),
        ("deadline_at", datetime.max.replace(tzinfo=UTC)),
    ],
)
async def test_a_time_beyond_what_can_be_reckoned_with_is_refused(engine, field, value):
    """asyncpg sends datetime.max as infinity, from which nothing can be subtracted."""
    assert await field_of(engine, **{field: value}) == field


async def test_a_far_future_does_not_stop_the_promoter(clock, engine):
    await engine.submit(delay=timedelta(days=36500))
    handled, due_in = await engine.promote()
    assert handled == 0
    assert due_in > timedelta(days=36499)


# What is refused


async def test_the_payload_limit_is_one_mebibyte(engine):
    assert await field_of(engine, payload=b"x" * (MIB + 1)) == "payload"


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("encoding", "x" * 65, "payload_encoding"),
        ("encoding", "é" * 33, "payload_encoding"),
        ("creator", "x" * 257, "creator"),
        ("max_reclaims", -1, "max_reclaims"),
        ("max_reclaims", 1000001, "max_reclaims"),
    ],
)
async def test_texts_and_counts_have_limits(engine, field, value, named):
    assert await field_of(engine, **{field: value}) == named


async def test_texts_at_their_limits_are_stored(engine):
    answer = await engine.submit(
        encoding="x" * 64, creator="é" * 128, key="k" * 512, fingerprint=b""
    )
    assert answer.word == "created"


async def test_tag_keys_that_are_accepted(db, engine):
    value = 'any value: ünïcode, "quotes", \n'
    keys = ["cairn.session_id", "a.b", "a1_2.x", "app.sub.field", "a._", "a.0", "a.b."]
    answers = await engine.submit_many([Item(tags={key: value}) for key in keys])
    for key, answer in zip(keys, answers, strict=True):
        assert answer.word == "created", key
        assert json.loads((await body(db, answer.id))["tags"]) == {key: value}


async def test_tag_keys_that_are_refused_are_named(engine):
    keys = [
        *("", "Cairn.x", "1cairn.x", "cairn", "cairn.", "cairn..x", ".cairn", "cair n.x"),
        *("ca-irn.x", "cairn.Foo", "cairn.foo bar", 'cairn.foo"bar', "cairn.foo-bar"),
        *("cairn.foo\\bar", "a.b\n", "é.x", "a.é"),
    ]
    answers = await engine.submit_many([Item(tags={"fine.key": "v", key: "v"}) for key in keys])
    for key, answer in zip(keys, answers, strict=True):
        assert answer.word == "invalid", key
        assert answer.detail["field"] == "tags"
        assert json.dumps(key, ensure_ascii=False) in answer.detail["problem"]
    assert await engine.rows() == []


async def test_tags_are_a_small_object_of_text(engine):
    bad = [
        "not json",
        "",
        "[]",
        "null",
        '"text"',
        '{"a.b": 1}',
        '{"a.b": null}',
        '{"a.b": {"c": "d"}}',
        '{"a.b": "nul \\u0000"}',
        '{"a.b": "half \\ud800"}',
        json.dumps({"a.b": "x" * 1025}),
        json.dumps({f"a.k{n}": "v" for n in range(65)}),
        json.dumps({"a.b": " " * 131072}),
        '{"a.b": 1e1000000}',
        '{"a.b": ' + "[" * 60000 + "]" * 60000 + "}",
    ]
    for tags in bad:
        assert await field_of(engine, tags=tags) == "tags", tags[:50]


async def test_tags_at_their_limits_are_stored(db, engine):
    tags = {f"a.k{n}": "v" for n in range(63)} | {"a.long": "x" * 1024}
    answer = await engine.submit(tags=tags)
    assert json.loads((await body(db, answer.id))["tags"]) == tags


async def test_no_tags_are_stored_as_none(db, engine):
    answer = await engine.submit(tags={})
    assert answer.word == "created"
    kept = await body(db, answer.id)
    assert kept is None or kept["tags"] is None


BAD_POLICIES = [
    ("not json", "malformed"),
    ("", "malformed"),
    ("[]", "malformed"),
    ("null", "malformed"),
    ('{"a": "\\u0000"}', "malformed"),
    ('{"a": 1e1000000}', "malformed"),
    ("[" * 30000 + "]" * 30000, "malformed"),
    (json.dumps({"a": "x" * 65536}), "64 KiB"),
    # fields that nobody obeys, at the top and inside
    ({"routing_requirements": {"required_capabilities": ["gpu"]}}, "routing_requirements: is not"),
    ({"routing_requirements": "x"}, "routing_requirements: is not"),
    ({"delay_until": 4102444800000}, "delay_until: is not"),
    ({"dedup_window_ms": 1}, "dedup_window_ms: is not"),
    (
        {"timeout_policy": {"execution_deadline_ms": 1}},
        "timeout_policy.execution_deadline_ms: is not",
    ),
    ({"timeout_policy": {"max_reclaim_count": 1}}, "timeout_policy.max_reclaim_count: is not"),
    ({"timeout_policy": {"max_retries": 1}}, "timeout_policy.max_retries: is not"),
    ({"retry_policy": {"attempt_timeout_ms": 1}}, "retry_policy.attempt_timeout_ms: is not"),
    ({"retry_policy": {"backoff": {"base_ms": 1}}}, "retry_policy.backoff.base_ms: is not"),
    ({"max_reclaim_count": -1}, "max_reclaim_count"),
    ({"max_reclaim_count": 1.5}, "max_reclaim_count"),
    ({"max_reclaim_count": "3"}, "max_reclaim_count"),
    ({"max_reclaim_count": None}, "max_reclaim_count"),
    ({"max_reclaim_count": 1000001}, "max_reclaim_count"),
    ({"max_reclaim_count": 10**30}, "max_reclaim_count"),
    ({"max_replay_count": -1}, "max_replay_count"),
    ({"timeout_policy": 5}, "timeout_policy"),
    ({"timeout_policy": None}, "timeout_policy"),
    ({"timeout_policy": {"attempt_timeout_ms": 0}}, "attempt_timeout_ms"),
    ({"timeout_policy": {"attempt_timeout_ms": "1"}}, "attempt_timeout_ms"),
    ({"timeout_policy": {"attempt_timeout_ms": 10**13}}, "attempt_timeout_ms"),
    ({"retry_policy": []}, "retry_policy"),
    ({"retry_policy": None}, "retry_policy"),
    ({"retry_policy": {"max_retries": -1}}, "max_retries"),
    ({"retry_policy": {"max_retries": 0.5}}, "max_retries"),
    ({"retry_policy": {"max_retries": 1000001}}, "max_retries"),
    ({"retry_policy": {"retryable_categories": "a"}}, "retryable_categories"),
    ({"retry_policy": {"retryable_categories": [1]}}, "retryable_categories"),
    ({"retry_policy": {"backoff": "fixed"}}, "backoff"),
    ({"retry_policy": {"backoff": {"type": "linear"}}}, "backoff.type"),
    ({"retry_policy": {"backoff": {"type": 1}}}, "backoff.type"),
    ({"retry_policy": {"backoff": {"jitter": "yes"}}}, "backoff.jitter"),
    ({"retry_policy": {"backoff": {"delay_ms": -1}}}, "backoff.delay_ms"),
    ({"retry_policy": {"backoff": {"delay_ms": 10**13}}}, "backoff.delay_ms"),
    ({"retry_policy": {"backoff": {"initial_delay_ms": "1"}}}, "backoff.initial_delay_ms"),
    ({"retry_policy": {"backoff": {"max_delay_ms": []}}}, "backoff.max_delay_ms"),
    ({"retry_policy": {"backoff": {"multiplier": 0.5}}}, "backoff.multiplier"),
    ({"retry_policy": {"backoff": {"multiplier": 1001}}}, "backoff.multiplier"),
    ({"retry_policy": {"backoff": {"multiplier": "2"}}}, "backoff.multiplier"),
]


async def test_a_policy_that_cannot_be_obeyed_is_refused(engine):
    answers = [await engine.submit(policy=policy) for policy, _ in BAD_POLICIES]
    for (policy, named), answer in zip(BAD_POLICIES, answers, strict=True):
        assert answer.word == "invalid", str(policy)[:100]
        assert answer.detail["field"] == "policy"
        assert named in answer.detail["problem"]
    assert await engine.rows() == []


async def test_bad_policies_of_one_batch_are_told_apart(engine):
    answers = await engine.submit_many([Item(policy=policy) for policy, _ in BAD_POLICIES])
    assert {answer.word for answer in answers} == {"invalid"}
    for (_, named), answer in zip(BAD_POLICIES, answers, strict=True):
        assert named in answer.detail["problem"]


async def test_policies_that_are_accepted_can_be_obeyed(clock, engine):
    await clock.freeze()  # some allow an attempt no more than a millisecond
    good = [
        {},
        {"max_reclaim_count": 0, "max_replay_count": 0},
        {"retry_policy": {}},
        {"retry_policy": {"max_retries": 0, "retryable_categories": []}},
        {"retry_policy": {"max_retries": 5, "backoff": {"type": "fixed", "delay_ms": 0}}},
        {"timeout_policy": {}},
        '{"max_reclaim_count": 3.0, "retry_policy": {"max_retries": 2.0}}',
        '{"max_reclaim_count": 1e2, "timeout_policy": {"attempt_timeout_ms": 1.5}}',
    ]
    for policy in good:
        answer = await engine.submit(policy=policy)
        assert answer.word == "created", policy
        lease = await engine.take(answer.id)
        assert (await engine.fail(lease)).word in ("failed", "retry_scheduled")


async def test_an_id_is_needed(db, engine):
    route = await engine.register()
    rows = await db.fetch(
        f"select * from ff.submit_executions(p_partition_key => '{home()}', p_namespace => 'test', "
        "p_execution_ids => array[null, $1]::uuid[], p_route_ids => array[$2, $2]::bigint[], "
        "p_payloads => null)",
        new_id(),
        route,
    )
    assert [(row["item"], row["outcome"]) for row in rows] == [(1, "invalid")]
    assert json.loads(rows[0]["detail"])["field"] == "execution_id"
    assert len(await engine.rows()) == 1


async def test_a_route_must_be_known_in_the_namespace(engine):
    foreign = await engine.register(namespace="other")
    known = await engine.register()
    answers = await engine.submit_many(
        [Item(route=foreign), Item(route=known), Item(route=12345), Item(route=known)]
    )
    assert [answer.word for answer in answers] == [
        "unknown_route",
        "created",
        "unknown_route",
        "created",
    ]
    assert answers[0].detail == {"route_id": foreign}


async def test_a_missing_route_is_unknown(db, engine):
    rows = await db.fetch(
        f"select * from ff.submit_executions(p_partition_key => '{home()}', p_namespace => 'test', "
        "p_execution_ids => array[$1]::uuid[], p_route_ids => array[null]::bigint[], "
        "p_payloads => null)",
        new_id(),
    )
    assert [row["outcome"] for row in rows] == ["unknown_route"]


async def test_no_namespace_knows_no_route(engine):
    route = await engine.register()
    answer = await engine.within(None).submit(route=route)
    assert answer.word == "unknown_route"


@pytest.mark.parametrize(
    ("state", "word"),
    [
        ("active", "created"),
        ("paused", "created"),
        ("draining", "lane_closed"),
        ("disabled", "lane_closed"),
    ],
)
async def test_the_state_of_the_lane_decides(db, engine, state, word):
    route = await engine.register(lane="mail")
    await db.execute("update ff.lane set state = $1", state)
    answer = await engine.submit(KEYED, route=route)
    assert answer.word == word
    if word == "lane_closed":
        assert answer.detail == {"field": "lane", "lane": "mail", "state": state}
        assert await db.fetchval("select count(*) from ff.idempotency_key") == 0


async def test_a_refused_field_is_told_before_the_state_of_the_lane(db, engine):
    route = await engine.register()
    await db.execute("update ff.lane set state = 'disabled'")
    answer = await engine.submit(route=route, tags="[]")
    assert answer.word == "invalid"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"key": ""}, "key"),
        ({"key": "x" * 513}, "key"),
        ({"key": "é" * 257}, "key"),
        ({"key": "k", "fingerprint": None}, "key_fingerprint"),
        ({"key": "k", "scope": "forever"}, "key_scope"),
        ({"key": "k", "window": timedelta(seconds=-1)}, "key_window"),
        ({"key": "k", "window": timedelta(days=3653)}, "key_window"),
        ({"key": "k", "key_partitions": 0}, "key_partitions"),
        ({"key": "k", "key_partitions": 32_768}, "key_partitions"),
    ],
)
async def test_a_key_that_cannot_be_kept_is_refused(engine, fields, named):
    assert await field_of(engine, **({"fingerprint": b"f"} | fields)) == named


async def test_what_goes_with_a_key_is_ignored_without_one(engine):
    answer = await engine.submit(scope="forever", window=timedelta(seconds=-1))
    assert answer.word == "created"


async def test_one_value_of_an_array_holds_for_all_items(db, engine):
    route = await engine.register()
    ids = [new_id() for _ in range(3)]
    rows = await db.fetch(
        f"select * from ff.submit_executions(p_partition_key => '{home()}', p_namespace => 'test', "
        "p_execution_ids => $1::uuid[], p_route_ids => array[$2]::bigint[], "
        "p_payloads => array['7']::bytea[], p_payload_encodings => array['json'], "
        "p_priorities => array[5], p_delays => array['1 h']::interval[], "
        """p_options => array['{"creator": "ada", "tags": {"a.b": "c"}}']::jsonb[])""",
        ids,
        route,
    )
    assert rows == []
    kept = await db.fetch(
        "select e.route_id, e.rank, e.payload, e.payload_encoding, e.eligibility::text, b.creator, "
        "b.tags from ff.execution e join ff.execution_body b using (execution_id)"
    )
    assert [tuple(row) for row in kept] == [
        (route, 8995, b"7", "json", "not_eligible_until_time", "ada", '{"a.b": "c"}')
    ] * 3


@pytest.mark.parametrize(
    ("argument", "field"),
    [
        ("p_payload_encodings => array[repeat('x', 65)]", "payload_encoding"),
        ("p_delays => array['200 years']::interval[]", "delay"),
        ("""p_options => array['{"creator": 7}']::jsonb[]""", "creator"),
        ("""p_options => array['{"tags": {"x": 1}}']::jsonb[]""", "tags"),
        ("""p_options => array['[]']::jsonb[]""", "options"),
        ("""p_options => array['{"colour": 1}']::jsonb[]""", "colour"),
        ("p_route_ids => array[null]::bigint[]", None),
    ],
)
async def test_a_bad_value_that_is_shared_refuses_every_item(db, engine, argument, field):
    routes = f"p_route_ids => array[{await engine.register()}], "
    rows = await db.fetch(
        f"select * from ff.submit_executions(p_partition_key => '{home()}', p_namespace => 'test', "
        f"{'' if 'p_route_ids' in argument else routes}p_execution_ids => $1::uuid[], "
        f"p_payloads => null, {argument})",
        [new_id(), new_id()],
    )
    assert [row["item"] for row in rows] == [1, 2]
    assert {json.loads(row["detail"]).get("field") for row in rows} == {field}


# Each value of a field that items may share, in turn with values of the other fields.
SHARED_VALUES = {
    "payload": [b"[1]", None, b"", b"x" * 256, b"x" * 257],
    "priority": [None, 5, -1, 99_999],
    "encoding": [None, "json", "cbor"],
    "delay": [None, timedelta(hours=1), timedelta(0)],
    "deadline": [None, timedelta(minutes=5)],
    "deadline_at": [None, None, datetime(2090, 1, 2, tzinfo=UTC)],
    "policy": [
        None,
        {"max_reclaim_count": 3, "retention_ms": 1000},
        {"timeout_policy": {"attempt_timeout_ms": 1500}},
    ],
    "max_reclaims": [None, 20],
    "tags": [None, {"team.name": "a"}, {}],
    "creator": [None, "alice"],
    "trace": [None, "{}"],
    "version": [None, None, "v1"],
}


async def test_items_that_are_alike_are_stored_as_items_that_differ(db, engine, clock):
    """Two statements store executions; both write the same rows, events and bodies."""
    await clock.freeze()
    choose = random.Random(7)
    items = [
        Item(**{name: choose.choice(values) for name, values in SHARED_VALUES.items()})
        for _ in range(30)
    ]
    # In one array with the others, so that every item has values of its own.
    differing = [answer.id for answer in await engine.submit_many(items)]
    alike = [[new_id(), new_id()] for _ in items]
    for item, ids in zip(items, alike, strict=True):
        options = options_of(item)
        rows = await db.fetch(
            f"select * from ff.submit_executions('{home()}', 'test', $1, array[$2::bigint], "
            "array[$3::bytea], array[$4::text], array[$5::integer], array[$6::interval], "
            "array[$7::jsonb])",
            ids,
            await engine.register(),
            item.payload,
            item.encoding,
            item.priority,
            item.delay,
            json.dumps(options) if options else None,
        )
        assert rows == []
    for item, one, two in zip(items, differing, alike, strict=True):
        wanted = await _stored(db, one)
        assert [await _stored(db, id_) for id_ in two] == [wanted, wanted], item


async def _stored(db, id_):
    """Return everything that is stored of an execution, except what names it."""
    found = []
    for table in ("execution", "execution_body", "event"):
        rows = await db.fetch(f"select * from ff.{table} where execution_id = $1", id_)
        named = ("execution_id", "event_id", "xid")
        found.append([{k: v for k, v in row.items() if k not in named} for row in rows])
    return found


async def test_alike_items_are_answered_one_by_one_if_some_are_taken(db, engine):
    route = await engine.register()
    taken, first, second = new_id(), new_id(), new_id()
    await engine.submit(id=taken, payload=b"1", version="v1")
    rows = await db.fetch(
        f"select item, outcome, execution_id from ff.submit_executions('{home()}', 'test', $1, "
        "array[$2::bigint], $3, p_options => array[$4::jsonb])",
        [second, taken, first, second],
        route,
        [b"2", b"3", b"4", b"5"],
        '{"task_version": "v2"}',
    )
    assert sorted(tuple(row) for row in rows) == [
        (2, "duplicate", taken),
        (4, "duplicate", second),
    ]
    assert {row["execution_id"]: row["payload"] for row in await engine.rows()} == {
        taken: b"1",
        first: b"4",
        second: b"2",
    }
    assert len(await engine.events()) == 3
    assert (await body(db, taken))["task_version"] == "v1"
    assert (await body(db, second))["task_version"] == "v2"


@pytest.mark.parametrize("size", [0, 1001])
async def test_a_batch_has_one_to_a_thousand_items(engine, size):
    await engine.register()
    with refused("WF001", message="invalid_input", field="execution_ids"):
        await engine.submit_many([Item(route=1)] * size)


async def test_a_batch_of_a_thousand_is_stored(engine):
    answers = await engine.submit_many([Item()] * 1000)
    assert {answer.word for answer in answers} == {"created"}
    assert len(await engine.rows()) == len(await engine.events()) == 1000


async def test_arrays_of_different_length_are_refused(db, engine):
    route = await engine.register()
    with refused("WF001", field="execution_ids"):
        await db.execute(
            f"select ff.submit_executions(p_partition_key => '{home()}', p_namespace => 'test', "
            "p_execution_ids => array[$1, $2, $3]::uuid[], p_route_ids => array[$4, $4]::bigint[], "
            "p_payloads => null)",
            new_id(),
            new_id(),
            new_id(),
            route,
        )
    with refused("WF001", field="execution_ids"):
        await db.execute(
            f"select ff.submit_executions(p_partition_key => '{home()}', p_namespace => 'test', "
            "p_execution_ids => null, p_route_ids => null, p_payloads => null)"
        )


@pytest.mark.parametrize(
    "bad",
    [
        Item(payload=b"x" * (MIB + 1)),
        Item(policy='{"max_reclaim_count": "many"}'),
        Item(policy="{"),
        Item(tags='{"a.b": "\\u0000"}'),
        Item(tags='{"a.b": 1e1000000}'),
        Item(delay=timedelta.max),
        Item(key="", fingerprint=b"f"),
        Item(route=12345),
        Item(encoding="x" * 65),
    ],
    ids=range(9),
)
async def test_one_bad_item_of_500_harms_no_other(engine, bad):
    items = [
        Item(policy={"max_reclaim_count": n}, tags={"a.n": str(n)}, delay=timedelta(seconds=n))
        for n in range(500)
    ]
    items[321] = bad
    answers = await engine.submit_many(items)
    assert answers[321].word in ("invalid", "unknown_route")
    assert {answer.word for n, answer in enumerate(answers) if n != 321} == {"created"}
    rows = {row["execution_id"]: row for row in await engine.rows()}
    assert len(rows) == len(await engine.events()) == 499
    assert rows[answers[17].id]["max_reclaims"] == 17


# Repeats


async def test_a_repeated_id_is_a_duplicate_and_changes_nothing(engine):
    first = await engine.submit(payload=b"1", priority=1)
    before = await engine.snapshot()
    again = await engine.submit(
        id=first.id, payload=b"2" * 1000, priority=2, tags={"a.b": "c"}, policy={}, creator="x"
    )
    assert (again.word, again.id) == ("duplicate", first.id)
    assert await engine.snapshot() == before


@pytest.mark.parametrize("state", ["leased", "retry_delayed", "completed"])
async def test_a_repeated_id_is_a_duplicate_in_any_state(engine, make, state):
    execution = await make.execution(state)
    before = await engine.snapshot()
    assert (await engine.submit(id=execution.id)).word == "duplicate"
    assert await engine.snapshot() == before


async def test_a_repeated_batch_creates_what_is_missing(engine):
    items = [Item(id=new_id()) for _ in range(10)]
    await engine.submit_many(items[:4])
    answers = await engine.submit_many(items)
    assert [answer.word for answer in answers] == ["duplicate"] * 4 + ["created"] * 6
    assert [answer.id for answer in answers] == [item.id for item in items]


async def test_of_two_items_with_one_id_the_first_is_created(db, engine):
    id_ = new_id()
    answers = await engine.submit_many(
        [
            Item(id=id_, payload=b"first"),
            Item(id=new_id()),
            Item(id=id_, payload=b"second" * 100, policy={"max_reclaim_count": 1}, creator="x"),
        ]
    )
    assert [answer.word for answer in answers] == ["created", "created", "duplicate"]
    row = await engine.row(id_)
    assert (row["payload"], row["max_reclaims"]) == (b"first", 100)
    assert await body(db, id_) is None


async def test_of_many_items_with_one_id_the_first_is_created(engine):
    ids = [new_id() for _ in range(20)]
    items = [Item(id=ids[n % 20], payload=str(n).encode()) for n in range(200)]
    answers = await engine.submit_many(items)
    assert [answer.word for answer in answers] == ["created"] * 20 + ["duplicate"] * 180
    assert [(await engine.row(id_))["payload"] for id_ in ids] == [
        str(n).encode() for n in range(20)
    ]


@pytest.mark.parametrize(
    "bad",
    [
        Item(payload=b"x" * (MIB + 1)),
        Item(policy="{", creator="bad"),
        Item(tags="[]"),
        Item(route=12345),
    ],
    ids=range(4),
)
async def test_a_refused_item_does_not_stand_for_a_good_one_with_its_id(db, engine, bad):
    id_ = new_id()
    answers = await engine.submit_many(
        [
            Item(**{name: getattr(bad, name) for name in bad.__slots__} | {"id": id_}),
            Item(id=id_, payload=b"good" * 100, creator="good"),
        ]
    )
    assert [answer.word for answer in answers] == [
        "unknown_route" if bad.route else "invalid",
        "created",
    ]
    kept = await body(db, id_)
    assert (kept["payload"], kept["creator"]) == (b"good" * 100, "good")


async def test_an_id_of_another_namespace_is_taken_but_not_told_about(db, engine):
    """It must not pass for a duplicate: the caller would think its own work is stored."""
    taken = await engine.submit()
    stranger = engine.within("stranger")
    before = await engine.snapshot()
    answer = await stranger.submit(KEYED, id=taken.id)
    assert answer.word == "invalid"
    assert answer.detail["field"] == "execution_id"
    assert await engine.snapshot() == before


# Keys


async def test_the_same_key_is_a_duplicate_of_the_first(engine):
    first = await engine.submit(KEYED)
    again = await engine.submit(KEYED, payload=b"other")
    assert (again.word, again.id) == ("duplicate", first.id)
    assert len(await engine.rows()) == 1


async def test_the_same_key_for_other_arguments_is_refused(engine):
    first = await engine.submit(KEYED)
    before = await engine.snapshot()
    other = await engine.submit(KEYED, fingerprint=b"g")
    assert (other.word, other.id) == ("key_reused", first.id)
    assert other.detail == {"field": "key", "key": "k", "task": "tests.work"}
    assert await engine.snapshot() == before


async def test_a_key_belongs_to_its_namespace(engine):
    await engine.submit(KEYED)
    assert (await engine.within("other").submit(KEYED)).word == "created"


async def test_a_key_is_remembered_for_a_day_by_default(clock, engine):
    await clock.freeze()
    first = await engine.submit(KEYED)
    await clock.advance(hours=23, minutes=59)
    assert (await engine.submit(KEYED)).id == first.id
    await clock.advance(minutes=1)
    second = await engine.submit(KEYED)
    assert second.word == "created"
    assert (await engine.submit(KEYED)).id == second.id


async def test_a_key_is_remembered_for_its_window(clock, engine):
    await clock.freeze()
    await engine.submit(KEYED, window=timedelta(minutes=10))
    await clock.advance(minutes=9)
    assert (await engine.submit(KEYED)).word == "duplicate"
    await clock.advance(minutes=1)
    assert (await engine.submit(KEYED, fingerprint=b"g")).word == "created"


async def test_a_window_of_nothing_is_not_remembered(db, engine):
    assert (await engine.submit(KEYED, window=timedelta())).word == "created"
    assert (await engine.submit(KEYED, window=timedelta())).word == "created"
    assert await db.fetchval("select count(*) from ff.idempotency_key") == 0


async def test_a_key_within_its_window_outlives_the_execution(engine):
    first = await engine.submit(KEYED)
    await engine.complete(await engine.take(first.id))
    assert (await engine.submit(KEYED)).word == "duplicate"


async def test_a_key_in_scope_unfinished_is_free_when_the_execution_has_ended(clock, engine):
    first = await engine.submit(KEYED, scope="unfinished")
    await clock.advance(days=400)
    assert (await engine.submit(KEYED, scope="unfinished")).id == first.id
    lease = await engine.take(first.id)
    assert (await engine.submit(KEYED, scope="unfinished")).word == "duplicate"
    await engine.complete(lease)
    second = await engine.submit(KEYED, scope="unfinished")
    assert second.word == "created"
    assert (await engine.submit(KEYED, scope="unfinished")).id == second.id


async def test_the_first_use_of_a_key_decides_its_scope(engine):
    first = await engine.submit(KEYED, scope="unfinished", window=timedelta())
    await engine.complete(await engine.take(first.id))
    assert (await engine.submit(KEYED, scope="window")).word == "created"
    assert (await engine.submit(KEYED, scope="unfinished")).word == "duplicate"


@pytest.mark.parametrize("scope", ["window", "unfinished"])
async def test_of_two_items_with_one_key_the_first_is_created(engine, scope):
    first, second, third, other = await engine.submit_many(
        [
            Item(key="k", fingerprint=b"f", scope=scope),
            Item(key="k", fingerprint=b"f", scope=scope),
            Item(key="k", fingerprint=b"g", scope=scope),
            Item(key="l", fingerprint=b"g", scope=scope),
        ]
    )
    assert [answer.word for answer in (first, second, third, other)] == [
        "created",
        "duplicate",
        "key_reused",
        "created",
    ]
    assert second.id == third.id == first.id
    assert third.detail["task"] == "tests.work"
    assert len(await engine.rows()) == 2


async def test_a_repeat_with_id_and_key_is_a_duplicate_of_itself(engine):
    first = await engine.submit(KEYED, id=new_id())
    before = await engine.snapshot()
    again = await engine.submit(KEYED, id=first.id)
    assert (again.word, again.id) == ("duplicate", first.id)
    assert await engine.snapshot() == before


async def test_a_repeat_after_the_window_is_still_a_duplicate_of_its_id(clock, engine):
    first = await engine.submit(KEYED, id=new_id())
    await clock.advance(days=2)
    again = await engine.submit(KEYED, id=first.id)
    assert (again.word, again.id) == ("duplicate", first.id)
    assert len(await engine.rows()) == 1


async def test_a_key_is_not_bound_to_an_execution_that_did_not_use_it(db, engine):
    first = await engine.submit()
    assert (await engine.submit(KEYED, id=first.id)).word == "duplicate"
    assert await db.fetchval("select count(*) from ff.idempotency_key") == 0
    assert (await engine.submit(KEYED)).word == "created"


async def test_a_refused_item_does_not_take_its_key(db, engine):
    assert (await engine.submit(KEYED, tags="[]")).word == "invalid"
    assert (await engine.submit(KEYED, route=12345)).word == "unknown_route"
    assert await db.fetchval("select count(*) from ff.idempotency_key") == 0
    assert (await engine.submit(KEYED)).word == "created"


async def test_an_expired_key_of_a_trimmed_execution_is_free(db, engine):
    first = await engine.submit(KEYED, scope="unfinished")
    await db.forget(first.id)
    assert (await engine.submit(KEYED, scope="unfinished")).word == "created"


async def test_a_key_that_another_transaction_is_busy_with_is_not_waited_for(db, engine):
    await engine.register()
    other = await db.connect()
    async with other.transaction():
        assert (await Engine(other).submit(KEYED)).word == "created"
        busy, free = await engine.submit_many([KEYED, Item(key="l", fingerprint=b"f")])
        assert (busy.word, free.word) == ("busy", "created")
    assert (await engine.submit(KEYED)).word == "duplicate"


async def test_a_key_of_a_submit_that_was_rolled_back_is_free(db, engine):
    await engine.register()
    other = await db.connect()
    transaction = other.transaction()
    await transaction.start()
    await Engine(other).submit(KEYED)
    await transaction.rollback()
    assert (await engine.submit(KEYED)).word == "created"


# Hints


async def test_a_batch_hints_once_a_lane(db, engine):
    routes = [
        await engine.register(lane="a"),
        await engine.register(lane="b", task="x"),
        await engine.register(lane="b", task="y"),
    ]
    items = [Item(route=route) for route in routes * 5]
    heard = await hints(db, "ff_ready", lambda: engine.submit_many(items))
    assert sorted(heard) == [f"{home()} test a", f"{home()} test b"]


async def test_there_is_no_hint_if_none_was_asked_for_or_nothing_was_created(db, engine):
    first = await engine.submit()
    assert await hints(db, "ff_ready", lambda: engine.submit(id=first.id)) == []
    assert await hints(db, "ff_ready", lambda: engine.submit_many([Item()], hint=False)) == []


async def test_ids_are_kept_as_they_are(engine):
    for id_ in (UUID(int=1), UUID(int=2**128 - 1)):
        assert (await engine.submit(id=id_)).word == "created"
        assert (await engine.row(id_))["execution_id"] == id_


@pytest.mark.parametrize("state", ["draining", "disabled"])
@pytest.mark.parametrize("key", [None, "k"])
async def test_a_repeat_is_told_of_what_it_stored_though_the_lane_was_closed_since(
    db, engine, state, key
):
    """The answer got lost and the lane was closed: what is stored is stored."""
    item = {"key": key, "fingerprint": b"f" if key else None}
    first = await engine.submit(**item)
    await db.execute(
        "select ff.set_lane(p_namespace => 'test', p_lane => 'default', p_state => $1)", state
    )
    before = await engine.snapshot()
    again = await engine.submit(id=first.id, **item)
    assert (again.word, again.id, again.detail) == ("duplicate", first.id, None)
    assert (await engine.submit()).word == "lane_closed"
    # another tenant's lane of that name is open, but the id is taken
    assert (await engine.within("other").submit(id=first.id)).word == "invalid"
    assert await engine.snapshot() == before
