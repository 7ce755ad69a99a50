"""The pages of the dashboard: what they show, who may see them, and what their forms do."""

from __future__ import annotations

import re

import pytest

from flowfabric.dashboard.pages import STATIC, read_static
from flowfabric.server import server
from flowfabric.server.principals import COOKIE, HOST_COOKIE
from server.browsing import HOSTILE, OWN, Page, Visitor, check_policy, sign_in
from server.stage import OURS, THEIRS, Caller
from server.traffic import make_traffic, pages_of
from worker.apps import working

HTML = {"accept": "text/html"}


@pytest.fixture
async def person(world):
    """Signs a visitor in, with the scopes given by the test."""

    async def person(*scopes: str) -> Visitor:
        return await sign_in(world, *scopes)

    return person


async def run_one(world, name: str, *arguments: object) -> str:
    async with working(world.app):
        run = await world.app.tasks[name].submit(*arguments)
        await (await world.app.client()).results.wait(run.id)
    return str(run.id.uuid)


async def test_every_page_is_shown_with_its_facts(world, person):
    done = await run_one(world, "add", 1, 2)
    failed = await run_one(world, "fail")
    visitor = await person("read")
    for path, texts in {
        "": ["Failed in the last day", "fail", "Workers"],
        "/executions": ["add", "fail", "completed"],
        "/executions?where=state%3Dfailed": ["fail"],
        f"/executions/{done}": ["completed", "attempt", "submitted", "3"],
        f"/executions/{failed}": ["ValueError", "no", "Traceback"],
        "/flows": ["No flow yet."],
        "/lanes": ["default"],
        "/workers": ["A worker that drains"],
    }.items():
        answer = await visitor.get(f"/dashboard{path}")
        page = Page(answer.text)
        assert answer.status_code == 200, path
        for text in texts:
            assert text in page.text, (path, text)
        check_policy(page, answer.headers["content-security-policy"], path)


async def test_a_wrong_filter_is_told_beside_the_field(person):
    visitor = await person("read")
    answer = await visitor.get("/dashboard/executions", params={"where": "colour=red"})
    assert answer.status_code == 422
    assert "colour" in Page(answer.text).text
    assert 'value="colour=red"' in answer.text


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/events?skip=-1", 422, "That did not work"),
        ("/audit?before=x", 422, "That did not work"),
        ("/executions/{id}/stream?since=x", 422, "That did not work"),
        ("/executions/nonsense", 422, "'nonsense' is not an id; give one"),
        ("/flows/nonsense", 422, "'nonsense' is not an id; give one"),
        ("/nowhere/at/all", 404, "There is no such page."),
        # A page to which only forms lead.
        ("/lanes/pause", 404, "There is no such page."),
    ],
)
async def test_a_wrong_address_is_told_on_a_page(world, person, path, status, words):
    visitor = await person("read", "admin")
    run = await world.app.tasks["add"].submit(1)
    page = await visitor.look(path.replace("{id}", str(run.id.uuid)), status)
    assert words in page.text


async def test_a_form_whose_value_is_no_object_submits_nothing(world, person):
    worker = await world.caller("work")
    task = {"name": "loose", "arguments": {"properties": {"a": {}}}}
    body = {"worker_id": "x", "worker_instance_id": "x", "tasks": [task]}
    assert (await worker.post("/v1/workers/register", json=body)).status_code == 200
    visitor = await person("read", "submit")
    for value, status in (("5", 422), ('{"a": 1}', 303)):
        form = {"task": "loose", "value": value}
        answer = await visitor.post("/dashboard/tasks/submit", data=form, headers=OWN)
        assert answer.status_code == status


async def test_a_task_that_was_only_submitted_has_a_page_however_many_tasks_there_are(
    world, person, conn
):
    names = [f"task_{n:04}" for n in range(1001)]
    columns = [[OURS] * 500, ["default"] * 500]
    for start in range(0, 1001, 500):
        some = names[start : start + 500]
        await conn.fetch(
            "select ff.register_routes($1, $2, $3, $4)",
            *(column[: len(some)] for column in columns),
            some,
            [""] * len(some),
        )
    visitor = await person("read")
    assert names[-1] in (await visitor.look(f"/tasks/one?name={names[-1]}")).text
    await visitor.look("/tasks/one?name=task_none", 404)


async def test_half_of_a_surrogate_pair_is_shown_as_its_escape(world, person):
    caller = await world.caller("work", "submit")
    body = {"worker_id": "x", "worker_instance_id": "x", "tasks": [{"name": "loose"}]}
    assert (await caller.post("/v1/workers/register", json=body)).status_code == 200
    made = await caller.post(
        "/v1/executions",
        content=rb'{"task": "loose", "arguments": {"a": "\ud800"}}',
        headers={"content-type": "application/json"},
    )
    page = await (await person("read")).look(f"/executions/{made.json()['uuid']}")
    assert r"\ud800" in page.text


async def test_a_form_that_is_sent_twice_acts_once(world, person):
    async with working(world.app):
        pass  # It registers the tasks.
    visitor = await person("read", "submit", "operate")

    async def send(page: str, place: str, **fields: str) -> str:
        inputs = (await visitor.look(page)).all("input")
        fields["once"] = str(next(one["value"] for one in inputs if one.get("name") == "once"))
        first, second = [
            await visitor.post(f"/dashboard{place}", data=fields, headers=OWN) for _ in range(2)
        ]
        assert (first.status_code, second.status_code) == (303, 303)
        assert first.headers["location"] == second.headers["location"]
        return first.headers["location"].removeprefix("/dashboard")

    form = {"task": "add", "value.x": "1"}
    one = await send("/tasks/one?name=add", "/tasks/submit", **form)
    assert one != await send("/tasks/one?name=add", "/tasks/submit", **form), (
        "the page was opened twice"
    )
    await send(one, f"{one}/signal", name="go", value="1")
    client = await world.client()
    assert len((await client.executions.list()).executions) == 2
    found = await client.executions.find(one.rpartition("/")[2])
    assert len(await client.signals.list(found)) == 1


async def test_a_page_of_executions_leads_to_the_older_ones(world, person):
    await world.app.tasks["add"].submit_many([(n,) for n in range(60)])
    visitor = await person("read")
    first = Page((await visitor.get("/dashboard/executions")).text)
    (older,) = [one["href"] for one in first.all("a") if one.get("rel") == "next"]
    second = Page((await visitor.get(str(older))).text)

    def listed(page: Page) -> set[str]:
        links = (str(one.get("href")) for one in page.all("a"))
        return {link for link in links if re.search(r"/executions/[0-9a-f-]{36}$", link)}

    assert (len(listed(first)), len(listed(second))) == (50, 10)
    assert not listed(first) & listed(second)


async def test_whoever_is_not_signed_in_is_asked_for_a_token(world):
    stranger = Caller(world.served)
    for path in ("", "/executions", "/workers"):
        answer = await stranger.get(f"/dashboard{path}")
        assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/sign-in")
    assert "Token" in Page((await stranger.get("/dashboard/sign-in")).text).text
    wrong = {"token": "ffp_" + "x" * 43}
    refused = await stranger.post("/dashboard/sign-in", data=wrong, headers=OWN)
    assert refused.status_code == 401
    assert "unknown, expired or revoked" in Page(refused.text).text
    assert "set-cookie" not in refused.headers
    await stranger.aclose()


async def test_the_cookie_opens_pages_only(world, person):
    visitor = await person("admin")
    assert (await visitor.get("/dashboard")).status_code == 200
    assert (await visitor.get("/v1/executions")).status_code == 401
    out = await visitor.post("/dashboard/sign-out", headers=OWN)
    assert out.headers["location"] == "/dashboard/sign-in"
    assert (await visitor.get("/dashboard")).status_code == 303


@pytest.mark.parametrize("scheme", ["https", "http"])
async def test_over_https_only_this_host_can_set_the_cookie(world, scheme):
    """A browser takes a cookie with the prefix __Host- only from the host itself over https, so
    that no neighbouring host can slip its own token in. Over http, it refuses the prefix."""
    mine, other = {"https": (HOST_COOKIE, COOKIE), "http": (COOKIE, HOST_COOKIE)}[scheme]
    token = await world.token("read")
    visitor = Caller(world.served)
    visitor.base_url = f"{scheme}://127.0.0.1:9090"
    own = {"origin": f"{scheme}://127.0.0.1:9090"}
    answer = await visitor.post("/dashboard/sign-in", data={"token": token}, headers=own)
    (cookie,) = answer.headers.get_list("set-cookie")
    assert cookie.startswith(f"{mine}={token}; ")
    words = set(cookie.lower().split("; "))
    assert {"httponly", "samesite=strict"} < words
    assert ("secure" in words, "path=/" in words) == (scheme == "https", scheme == "https")
    assert not any(word.startswith("domain") for word in words)
    assert (await visitor.get("/dashboard")).status_code == 200
    out = await visitor.post("/dashboard/sign-out", headers=own)
    cleared = dict(one.split("=", 1) for one in out.headers.get_list("set-cookie"))
    assert set(cleared) == {mine, other}
    assert all("max-age=0" in one.lower() for one in cleared.values())
    assert (await visitor.get("/dashboard")).status_code == 303
    slipped = {"cookie": f"{other}={token}"}
    assert (await visitor.get("/dashboard", headers=slipped)).status_code == 303
    await visitor.aclose()


async def test_an_act_is_done_once_with_actor_and_reason(world, person):
    run = await world.app.tasks["add"].submit(1)
    visitor = await person("read", "operate")
    address = f"/dashboard/executions/{run.id.uuid}"
    page = Page((await visitor.get(address)).text)
    place = address.removeprefix("/dashboard")
    assert page.acts == {f"{place}/{act}" for act in ("priority", "cancel", "signal")}
    form = {"version": "1", "reason": "no need", "priority": "7"}
    raised = await visitor.post(f"{address}/priority", data=form, headers=OWN)
    assert (raised.status_code, raised.headers["location"]) == (303, address)
    late = await visitor.post(f"{address}/cancel", data=form, headers=OWN)
    assert late.status_code == 412
    assert "has changed" in Page(late.text).text
    done = await visitor.post(f"{address}/cancel", data=form | {"version": "2"}, headers=OWN)
    assert done.status_code == 303
    client = await world.client()
    events = await client.executions.events(run.id)
    assert [event.kind for event in events] == ["submitted", "priority_changed", "cancelled"]
    assert (await client.executions.describe(run.id)).cancellation_reason == "no need"
    assert "token tests" in str(events[-1].actor)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"reason": " "}, 422),
        ({"version": "many"}, 422),
        ({"act": "burn"}, 404),
        ({"id": "0" * 8}, 404),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": ""}, 403),
        ({"scopes": ("read",)}, 403),
        ({"media": "application/json"}, 415),
    ],
)
async def test_an_act_that_may_not_be_done_changes_nothing(world, person, change, status):
    run = await world.app.tasks["add"].submit(1)
    visitor = await person(*change.get("scopes", ("read", "operate")))
    form = {"version": "1", "reason": "why"} | change
    headers = {"origin": change["origin"]} if change.get("origin") else dict(OWN)
    if change.get("origin") == "":
        headers = {}
    if "media" in change:
        headers["content-type"] = change["media"]
    path = f"/dashboard/executions/{change.get('id', run.id.uuid)}/{change.get('act', 'cancel')}"
    answer = await visitor.post(path, data=form, headers=headers)
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("text/html")
    assert await run.state() == "waiting"


async def test_a_reader_sees_no_button(world, person):
    run = await world.app.tasks["add"].submit(1)
    page = Page((await (await person("read")).get(f"/dashboard/executions/{run.id.uuid}")).text)
    assert page.acts == set()


async def test_payloads_can_be_hidden_from_readers(world, person):
    done = await run_one(world, "add", 40, 2)
    world.served.state.backend.hides_payloads = True
    for scopes, sees in ((("read",), False), (("read", "operate"), True)):
        visitor = await person(*scopes)
        page = Page((await visitor.get(f"/dashboard/executions/{done}")).text)
        assert ('"x": 40' in page.text) is sees
        assert ("hidden from visitors" in page.text) is not sees


async def test_hostile_text_stays_text(world, person):
    client = await world.client()
    task = world.app.tasks["fail"]
    run = await task.using(tags={"team.name": HOSTILE}, key=HOSTILE, lane="<b>lane</b>").submit()
    await client.executions.cancel(run.id, reason=HOSTILE, actor=HOSTILE)
    visitor = await person("read", "operate")
    for path in ("", "/executions", f"/executions/{run.id.uuid}", "/lanes"):
        answer = await visitor.get(f"/dashboard{path}")
        page = Page(answer.text)
        assert answer.status_code == 200
        assert {one.get("src") for one in page.all("script")} == {"/dashboard/static/script.js"}
        assert list(page.all("img")) == []
        assert list(page.all("b")) == []
    assert HOSTILE in Page((await visitor.get(f"/dashboard/executions/{run.id.uuid}")).text).text


# Texts that run or break out somewhere if a page forgets to escape them.
CORPUS = {
    "tags": HOSTILE,
    "attributes": "\"' onmouseover='alert(1)' style='color:red",
    "ends": "</title></textarea></select></script><script src=//evil.example></script>",
    "svg": "</text></svg><svg onload=alert(1)>]]><!--",
    "links": "javascript:alert(1)//<a href=javascript:alert(1)>x</a>",
    "templates": "{{7*7}}{% raw %}${7*7}#{7*7}",
    "shell": "x;$(touch${IFS}pwned)`id`\\u0000\\x00%00&#0;",
    "signs": "\u202eevil\u2066 日本語 👩\u200d👧 &lt;b&gt; &#60;",
}


@pytest.mark.slow(short=1, of="corpus")
@pytest.mark.parametrize("name", CORPUS)
async def test_stored_text_runs_nowhere_and_a_reader_has_no_button(world, clock, person, name):
    left = await make_traffic(world, clock, hostile=CORPUS[name])
    pages = pages_of(left)
    administrator, reader = await person("admin"), await person("read")
    for path in [*pages.values(), f"{pages['flow']}?unfold=yes", "/executions?where=state%3Dx"]:
        answer = await administrator.get(f"/dashboard{path}")
        page = Page(answer.text)
        check_policy(page, answer.headers["content-security-policy"], path)
        assert {one.get("src") for one in page.all("script")} == {"/dashboard/static/script.js"}
        tags = {tag for tag, _ in page.tags}
        assert not tags & {"img", "iframe", "object", "embed", "base", "b"}, path
        links = [str(one.get("href")) for one in page.all("a")]
        assert all(link.startswith(("/dashboard", "#main")) for link in links), path
        seen = Page((await reader.get(f"/dashboard{path}")).text)
        assert seen.acts == set(), path
    public = Page((await reader.get(f"/w/{left.tokens['ops']}", headers=HTML)).text)
    assert [tag for tag, _ in public.tags if tag in ("script", "img", "a", "nav")] == []


def test_the_pages_load_only_a_short_script_and_a_style_of_their_own():
    texts = {name: read_static(name).decode() for name in STATIC}
    assert len(texts["script.js"].splitlines()) < 400
    for name, text in texts.items():
        assert re.findall(r"(?:https?:)?//(?!www\.w3\.org)[\w.-]+\.\w+/", text) == [], name
        assert "@import" not in text


async def test_a_visitor_sees_nothing_of_another_namespace(world, person):
    theirs = world.app.tasks["add"].within(THEIRS)
    run = await theirs.submit(1)
    visitor = await person("read", "operate")
    assert str(run.id.uuid) not in (await visitor.get("/dashboard/executions")).text
    assert (await visitor.get(f"/dashboard/executions/{run.id.uuid}")).status_code == 404


async def test_a_flow_is_drawn_with_its_members(world, person):
    add = world.app.tasks["add"]
    async with world.app.flow("sums") as f:
        first = f.add(add, 1)
        second = f.add(add, first.result)
    visitor = await person("read")
    listed = Page((await visitor.get("/dashboard/flows")).text)
    assert "sums" in listed.text
    address = f"/dashboard/flows/{f.run.id.uuid}"
    page = Page((await visitor.get(address)).text)
    (drawing,) = [one for one in page.all("svg") if one.get("class") == "drawing"]
    assert drawing["viewbox"]
    members = {f"/dashboard/executions/{one.id.uuid}" for one in (first, second)}
    assert {str(one.get("href")) for one in page.all("a")} >= members
    assert ".drawing .box" in (await visitor.get("/dashboard/static/drawing.css")).text
    times = Page((await visitor.get(f"{address}?view=gantt")).text)
    assert "waits" in times.text


async def test_a_worker_is_drained_from_its_row(world, person):
    client = await world.client()
    await client.workers.register(worker_id="pool", worker_instance_id="pool-1", slots=4)
    visitor = await person("read", "operate")
    form = {"instance": "pool-1", "reason": "host goes down"}
    answer = await visitor.post("/dashboard/workers/drain", data=form, headers=OWN)
    assert answer.status_code == 303
    assert "draining" in Page((await visitor.get("/dashboard/workers")).text).text
    gone = await visitor.post(
        "/dashboard/workers/drain", data=form | {"instance": "pool-2"}, headers=OWN
    )
    assert gone.status_code == 404


async def test_without_auth_a_form_of_another_site_is_refused(world):
    served = server(world.app, auth="none")
    visitor = Caller(served)
    run = await world.app.tasks["add"].submit(1)
    path = f"/dashboard/executions/{run.id.uuid}/cancel"
    form = {"version": "1", "reason": "why"}
    assert (await visitor.get("/dashboard")).status_code == 200
    for headers in ({}, {"origin": "http://evil.example"}, {**OWN, "sec-fetch-site": "cross-site"}):
        assert (await visitor.post(path, data=form, headers=headers)).status_code in (403, 415)
    assert await run.state() == "waiting"
    assert (await visitor.post(path, data=form, headers=OWN)).status_code == 303
    assert await run.state() == "cancelled"
    await visitor.aclose()
    assert world.app.settings.namespace == OURS
