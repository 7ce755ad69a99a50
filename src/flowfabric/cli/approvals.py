"""`flowfabric approvals`: list the questions that wait for people, and answer them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated
from uuid import UUID

import typer

from flowfabric.cli.ids import ID_ARGUMENT, complain_unreached, find_execution, read_token
from flowfabric.cli.options import Actor, Namespaces, command
from flowfabric.cli.output import Printer, screen
from flowfabric.core.ids import ExecutionId, parse_id
from flowfabric.core.signal import (
    TOKEN_PREFIX,
    ApprovalAnswer,
    ApprovalInfo,
    Delivered,
    Signal,
    decision_name,
    encode_comment,
    token_address,
)
from flowfabric.drawing.plain import json_text
from flowfabric.drawing.table import Column, record
from flowfabric.drawing.text import printable
from flowfabric.drawing.times import exact, relative

app = typer.Typer(
    name="approvals",
    no_args_is_help=True,
    help="List the approvals that executions wait for, and answer them.\n\nAn answer without a "
    "token needs the role flowfabric_operator.",
)

Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="Id of an execution, or the last digits of the id, or the token of an approver. `-` "
        "reads the token from stdin, so that no process list shows the token.",
    ),
]
For = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="APPROVER",
        help="Answer for this approver. Default: --actor if you give it, else the name of your "
        "user on this machine. Default with --url: the name that the server records as the actor.",
        show_default=False,
    ),
]
Which = Annotated[
    UUID | None,
    typer.Option(
        "--approval",
        metavar="ID",
        help="Answer this approval; `approvals show` prints the id. Required if several "
        "approvals ask the same approver.",
        show_default=False,
    ),
]
Comment = Annotated[
    str | None,
    typer.Option(
        "--comment",
        "-m",
        help="Add this comment to the answer; the handler can read it. Default: none.",
        show_default=False,
    ),
]


@command(app)
async def ls(
    database: Namespaces,
    printer: Printer,
    limit: int = typer.Option(
        100, "--limit", min=1, max=1000, help="List at most this many approvals."
    ),
) -> None:
    """List open approvals, oldest first.

    Exit codes: 5: no database.
    """
    async with database.client() as client:
        found = await client.approvals.list(limit=limit)
        now = await client.executions.server_time()
    columns: list[Column[ApprovalInfo]] = [
        Column("ID", lambda one: str(one.id.uuid)),
        Column("QUESTION", lambda one: printable(one.question), least=12),
        Column("SINCE", lambda one: relative(one.created_at, now)),
        Column("APPROVED", lambda one: f"{one.approved_count} of {one.need}"),
        Column("WAITING FOR", lambda one: printable(", ".join(one.waiting_for)) or "-", least=8),
    ]
    printer.records(list(found), columns, empty="no approvals are open")
    complain_unreached(found.missing)


@command(app)
async def show(database: Namespaces, printer: Printer, id: str = ID_ARGUMENT) -> None:
    """Show the approvals of an execution: the question, its details, and every answer.

    Exit codes: 3: not found. 5: no database.
    """
    text = parse_id(id)
    async with database.client() as client:
        found = await client.approvals.of(await find_execution(client, text))
        now = await client.executions.server_time()
    for one in found:
        printer.record(one, lambda one=one: _lines(one, now))  # type: ignore[misc]


@command(app)
async def approve(
    database: Namespaces,
    printer: Printer,
    actor: Actor,
    target: Target,
    approver: For = None,
    approval: Which = None,
    comment: Comment = None,
) -> None:
    """Answer an approval with "yes".

    Exit codes: 3: not found. 4: refused because of an earlier answer, or because the approval is
    closed. 5: no database.
    """
    await _answer(database, printer, actor, target, True, approver, approval, comment)


@command(app)
async def deny(
    database: Namespaces,
    printer: Printer,
    actor: Actor,
    target: Target,
    approver: For = None,
    approval: Which = None,
    comment: Comment = None,
) -> None:
    """Answer an approval with "no".

    Exit codes: 3: not found. 4: refused because of an earlier answer, or because the approval is
    closed. 5: no database.
    """
    await _answer(database, printer, actor, target, False, approver, approval, comment)


async def _answer(
    database: Namespaces,
    printer: Printer,
    actor: Actor,
    target: str,
    is_approved: bool,
    approver: str | None,
    approval: UUID | None,
    comment: str | None,
) -> None:
    if target == "-" or target.startswith(TOKEN_PREFIX):
        for given, option in ((approver, "--for"), (approval, "--approval")):
            if given is not None:
                raise typer.BadParameter(
                    "cannot be combined with a token, which says who answers what",
                    param_hint=option,
                )
        token = read_token(target)
        sent = Signal(
            name=decision_name(is_approved),
            payload=encode_comment(comment),
            source_type="token",
            source_identity=actor.who,
        )
        found = token_address(token)
        async with database.client() as client:
            delivered = await client.signals.deliver_by_token(token, sent)
    else:
        text = parse_id(target)
        if approver is None and database.server_url is None:
            # Send no approver to a server: it uses the name of the caller's token.
            approver = actor.name
        async with database.client() as client:
            found = await find_execution(client, text)
            delivered = await client.approvals.answer(
                found,
                is_approved=is_approved,
                actor=actor.who,
                approver=approver,
                comment=comment,
                approval_id=approval,
            )
    facts = {
        "id": found,
        "signal_id": delivered.id,
        "is_approved": is_approved,
        "is_duplicate": delivered.is_duplicate,
        "effect": delivered.effect,
    }
    printer.record(facts, lambda: [_report_line(found, is_approved, delivered)])


def _report_line(id: ExecutionId, is_approved: bool, delivered: Delivered) -> str:
    done = "approved" if is_approved else "denied"
    if delivered.is_duplicate:
        return f"{id.uuid}  {done} before, nothing changed"
    return f"{id.uuid}  {done}; " + (
        "this decides the approval" if delivered.effect == "woken" else "others must answer, too"
    )


def _lines(one: ApprovalInfo, now: datetime) -> Sequence[str]:
    state = "open" if one.is_open else "closed"
    details = None if one.details is None else printable(json_text(one.details))
    lines = [
        printable(one.question),
        f"  {state}, asked {relative(one.created_at, now)}: {one.approved_count} of {one.need} "
        f"approvals; rejections needed to deny it: {one.deny}",
        *record((("approval", str(one.approval_id)), ("details", details)), screen(), indent=2),
    ]
    lines += [f"  {_answer_line(answer)}" for answer in one.answers]
    lines += [f"  {printable(name)}: no answer yet" for name in one.waiting_for]
    return lines


def _answer_line(answer: ApprovalAnswer) -> str:
    done = "approved" if answer.is_approved else "denied"
    by = f" by {printable(answer.by)}" if answer.by and answer.by != answer.approver else ""
    comment = f": {printable(answer.comment)}" if answer.comment else ""
    return f"{printable(answer.approver)}: {done}{by} at {exact(answer.at)}{comment}"
