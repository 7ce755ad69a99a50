"""Payloads that lack the results of other nodes of a flow until their execution starts."""

from __future__ import annotations

from flowfabric.core.execution import Claimed
from flowfabric.tasks.hook_spec import ENDED_ENCODING, HookSpec
from flowfabric.tasks.inputs import INPUTS_ENCODING, Inputs, fill_inputs
from flowfabric.tasks.spec import TaskSpec

# The encodings of such payloads: that of a node, and that of the hook of a node.
UNFILLED_ENCODINGS = (INPUTS_ENCODING, ENDED_ENCODING)


async def fill_payload(claimed: Claimed, spec: TaskSpec, inputs: Inputs) -> bytes:
    """Read the results that a payload lacks and put them in; `InvalidInput` if that fails."""
    payload = claimed.payload
    if isinstance(spec, HookSpec):
        return spec.fill_inputs(payload, await inputs.read(spec.ended_id(payload)))
    return fill_inputs(payload, await inputs.read(claimed.id))
