"""`flowfabric signal`: send a signal to an execution, or answer the waitpoint of a token."""

from __future__ import annotations

import json

import typer

from flowfabric.cli.ids import find_execution, read_token
from flowfabric.cli.options import Actor, Namespaces
from flowfabric.cli.output import Printer
from flowfabric.core.errors import InvalidInput
from flowfabric.core.ids import parse_id
from flowfabric.core.json_text import read_json
from flowfabric.core.signal import TOKEN_PREFIX, Delivered, Signal, token_address
from flowfabric.core.why import Dimension, Why
from flowfabric.drawing.text import printable

_EFFECTS = {
    "woken": "it woke the execution",
    "buffered": "it is kept until a wait takes it",
    "stored": "the execution is busy and will see it soon",
}


async def signal(
    database: Namespaces,
    printer: Printer,
    target: str = typer.Argument(
        metavar="TARGET",
        help="Id of an execution, its last digits, or the token of a waitpoint. - reads the token "
        "from stdin, so that no process list shows the token.",
    ),
    name: str = typer.Argument(metavar="NAME", help="The name of the signal."),
    value: str | None = typer.Argument(
        None,
        metavar="[JSON]",
        help="The value of the signal as JSON, such as true or '{\"amount\": 7}'. Default: null. "
        "Required if TARGET is a token.",
        show_default=False,
    ),
    by: str | None = typer.Option(
        None,
        "--by",
        help="Record this name as the sender, as a note for people. Default: user@host.",
        show_default=False,
    ),
    key: str | None = typer.Option(
        None,
        "--key",
        help="Give the signal a key. A second signal with this key and name has no effect. "
        "Default: no key.",
        show_default=False,
    ),
) -> None:
    """Send a signal to an execution.

    The first wait of the execution for a signal of this name takes the signal. The signal is kept
    until then. If TARGET is the token of a waitpoint, the signal answers that waitpoint. The token
    is never printed.

    Exit codes: 3: not found. 4: the execution has ended or has too many signals. 5: no database.
    """
    is_token = target == "-" or target.startswith(TOKEN_PREFIX)
    if is_token and value is None:
        raise InvalidInput(
            field="JSON",
            problem="is missing. With a token write: flowfabric signal TOKEN NAME JSON",
        )
    sent = Signal(
        name=name,
        payload=_payload("null" if value is None else value),
        key=key,
        source_type="operator",
        source_identity=Actor().who if by is None else by,
    )
    token = read_token(target)
    text = "" if is_token else parse_id(target)
    why: Why | None = None
    async with database.client() as client:
        if is_token:
            found = token_address(token)
            delivered = await client.signals.deliver_by_token(token, sent)
        else:
            found = await find_execution(client, text)
            delivered = await client.signals.deliver(found, sent)
            if delivered.effect == "buffered":
                why = await client.executions.why(found)
    facts = {
        "id": found,
        "signal_id": delivered.id,
        "name": name,
        "is_duplicate": delivered.is_duplicate,
        "effect": delivered.effect,
    }
    printer.record(facts, lambda: [f"{found.uuid}  {_words(name, delivered)}", *_missing(why)])


def _payload(value: str) -> bytes:
    try:
        return json.dumps(read_json(value)).encode()
    except ValueError as error:
        raise InvalidInput(
            field="JSON", problem=f"is not JSON: {error}. Put texts in double quotes: '\"yes\"'"
        ) from None


def _missing(why: Why | None) -> list[str]:
    """Return a line that says which signal an execution waits for.

    If it waits for no signal, return no line.
    """
    if why is None or why.dimension is not Dimension.SIGNAL:
        return []
    return [f"  {printable(why.sentence)}"]


def _words(name: str, delivered: Delivered) -> str:
    if delivered.is_duplicate:
        return f"{name}: sent before, nothing changed"
    return f"{name}: {_EFFECTS.get(delivered.effect or '', 'sent')}"
