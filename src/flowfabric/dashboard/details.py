"""Parts of the page of one execution: links, diffs between failures, and commands to copy."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from difflib import unified_diff
from urllib.parse import quote

from flowfabric.core.execution import AttemptInfo, ExecutionInfo
from flowfabric.core.why import Dimension, Why
from flowfabric.drawing.plain import body_text

_ID = re.compile(r"\{fp:\d+\}:([0-9a-f-]{36})")
# Some facts in the evidence of a reason, and the page that each of them links to.
_PAGES = {"gate": "/lanes", "schedule": "/schedules"}
_LINKS_SHOWN = 10


def links_of(why: Why) -> list[tuple[str, str]]:
    """Return at most ten links to the things that a reason names. A link is a text and a path."""
    found: dict[str, str] = {}
    for name, value in why.evidence.items():
        for id in _ID.findall(json.dumps(value, default=str)):
            page = "flows" if "flow" in name else "executions"
            found[f"{name.removesuffix('_id').replace('_', ' ')} …{id[-12:]}"] = f"/{page}/{id}"
        if name == "lane" and isinstance(value, str):
            found[f"lane {value}"] = f"/lanes#{quote(f'lane-{value}')}"
        elif name == "quota" and value == "ff:lane":
            key = why.evidence["key"]
            found[f"lane {key}"] = f"/lanes#{quote(f'lane-{key}')}"
        elif name in ("quota", "budget"):
            page = "lanes" if name == "quota" else "budgets"
            found[f"{name} {value}"] = f"/{page}#{quote(f'{name}-{value}')}"
        elif name in _PAGES:
            found[f"{name} {value}"] = _PAGES[name]
    if why.dimension is Dimension.WORKER:
        found["workers"] = "/workers"
    return [*found.items()][:_LINKS_SHOWN]


def differences(attempts: Sequence[AttemptInfo]) -> dict[int, str]:
    """Compare each failed attempt with the previous failed attempt. Return the diffs by attempt.

    If the failures of two attempts do not differ, there is no diff.
    """
    found: dict[int, str] = {}
    before: AttemptInfo | None = None
    for one in attempts:
        if one.failure_reason is None:
            continue
        if before is not None and (changed := list(_changes(before, one))):
            found[one.attempt] = "\n".join(changed)
        before = one
    return found


def _changes(before: AttemptInfo, after: AttemptInfo) -> Iterable[str]:
    return unified_diff(
        _lines(before),
        _lines(after),
        f"attempt {before.attempt}",
        f"attempt {after.attempt}",
        n=2,
        lineterm="",
    )


def _lines(attempt: AttemptInfo) -> list[str]:
    return (attempt.trace(is_whole=False) or attempt.failure_reason or "").split("\n")


def copies_of(info: ExecutionInfo, base: str) -> list[tuple[str, str]]:
    """Return an execution as commands and code to copy: for the shell, curl, Python and pytest.

    The texts for the shell, curl and Python read the execution, and submit a new one with the same
    arguments, lane, priority and tags. The text for pytest runs a new one with the same arguments.
    The name of a task does not say where its code is, so the part before the last dot is taken as
    the module.
    """
    id = str(info.id.uuid)
    arguments, options = _arguments(info), _options(info)
    body = json.dumps({"task": info.task, "arguments": arguments, **options}, ensure_ascii=False)
    given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    using = ", ".join(f"{name}={value!r}" for name, value in options.items())
    module, _, last = info.task.rpartition(".")
    name = re.sub(r"\W", "_", last) or "task"
    submit = ["flowfabric", "submit", f"{module or 'MODULE'}:{name}"]
    if arguments:
        submit.append(json.dumps(arguments, ensure_ascii=False))
    submit += ["--lane", info.lane]
    if info.priority:
        submit += ["--priority", str(info.priority)]
    for key, value in info.tags.items():
        submit += ["--tag", f"{key}={value}"]
    token = '-H "Authorization: Bearer $TOKEN"'
    return [
        ("Shell", f"flowfabric show {id}\nflowfabric why {id}\n{shlex.join(submit)}"),
        (
            "curl",
            f"curl {token} {base}/v1/executions/{id}\n"
            f'curl {token} -H "Content-Type: application/json" \\\n'
            f"  -d {shlex.quote(body)} {base}/v1/executions",
        ),
        (
            "Python",
            f'run = app.get("{id}")\n'
            f"print(await run.state())\n"
            f"task = app.tasks[{info.task!r}].using({using})\n"
            f"again = await task.submit({given})",
        ),
        (
            "pytest",
            f"from {module or 'MODULE'} import {name}\n\n"
            f"from flowfabric.testing import Harness\n\n\n"
            f"async def test_{name}(ff: Harness) -> None:\n"
            f"    run = await ff.submit({name}{', ' if given else ''}{given})\n"
            f"    await ff.run(run)",
        ),
    ]


def _options(info: ExecutionInfo) -> dict[str, object]:
    """Return the lane, the priority and the tags of an execution, as options of a new submit."""
    options: dict[str, object] = {"lane": info.lane}
    if info.priority:
        options["priority"] = info.priority
    if info.tags:
        options["tags"] = dict(info.tags)
    return options


def _arguments(info: ExecutionInfo) -> dict[str, object]:
    """Return the arguments of an execution by name. Return {} if the payload has no names."""
    try:
        found = json.loads(body_text(info.payload or b"{}"))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict) or not all(name.isidentifier() for name in found):
        return {}
    return found
