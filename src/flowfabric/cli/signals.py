"""`flowfabric signal`: send a signal to an execution, or answer the waitpoint of a token."""

from __future__ import annotations

import json
import sys

import typer

from flowfabric.cli.ids import find_execution
from flowfabric.cli.options import Actor, Namespaces
from flowfabric.cli.output import Printer
from flowfabric.core.errors import InvalidInput
from flowfabric.core.ids import parse_id
from flowfabric.core.signal import TOKEN_PREFIX, Delivered, Signal, token_address

_EFFECTS = {
    "woken": "it woke the execution",
    "buffered": "it is kept until the execution waits for it",
    "stored": "the execution is busy and sees it soon",
}


async def signal(
    database: Namespaces,
    printer: Printer,
    target: str = typer.Argument(
        metavar="TARGET",
        help="Id of an execution, or its last digits; or the token of a waitpoint; - reads the "
        "token from stdin, so that no list of processes shows it.",
    ),
    name: str = typer.Argument(metavar="NAME", help="The name of the signal."),
    value: str = typer.Argument(
        "null", metavar="JSON", help="Its value as JSON, such as true or '{\"amount\": 7}'."
    ),
    by: str | None = typer.Option(
        None, "--by", help="Who sends it, for people to read. Default: you.", show_default=False
    ),
    key: str | None = typer.Option(
        None,
        "--key",
        help="A second signal with this key and name is a duplicate. Default: none.",
        show_default=False,
    ),
) -> None:
    """Send a signal to an execution.

    The first wait for this name takes it, now or later. A token is the whole address of a
    waitpoint; it is never printed.

    Exit codes: 3 not found, 4 it has ended or has too many signals, 5 no database.
    """
    sent = Signal(
        name=name,
        payload=_payload(value),
        key=key,
        source_type="operator",
        source_identity=Actor().who if by is None else by,
    )
    token = sys.stdin.readline().strip() if target == "-" else target
    is_token = target == "-" or target.startswith(TOKEN_PREFIX)
    text = "" if is_token else parse_id(target)
    async with database.client() as client:
        if is_token:
            found = token_address(token)
            delivered = await client.signals.deliver_by_token(token, sent)
        else:
            found = await find_execution(client, text)
            delivered = await client.signals.deliver(found, sent)
    facts = {
        "id": found,
        "signal_id": delivered.id,
        "name": name,
        "is_duplicate": delivered.is_duplicate,
        "effect": delivered.effect,
    }
    printer.record(facts, lambda: [f"{found.uuid}  {_words(name, delivered)}"])


def _payload(value: str) -> bytes:
    try:
        return json.dumps(json.loads(value)).encode()
    except ValueError as error:
        raise InvalidInput(
            field="JSON", problem=f"is not JSON: {error}. Put texts in double quotes: '\"yes\"'"
        ) from None


def _words(name: str, delivered: Delivered) -> str:
    if delivered.is_duplicate:
        return f"{name}: sent before, nothing changed"
    return f"{name}: {_EFFECTS.get(delivered.effect or '', 'sent')}"
