"""Fills in payloads that lack the results of other nodes, before a worker calls the handler."""

from __future__ import annotations

from flowfabric.core.execution import Claimed
from flowfabric.tasks.hook_spec import ENDED_ENCODING, HookSpec
from flowfabric.tasks.inputs import INPUTS_ENCODING, Inputs, fill_inputs
from flowfabric.tasks.spec import TaskSpec

# The encodings of payloads that may lack results: of a node, and of the hook of a node.
UNFILLED_ENCODINGS = (INPUTS_ENCODING, ENDED_ENCODING)


async def fill_payload(claimed: Claimed, spec: TaskSpec, inputs: Inputs) -> bytes:
    """Read the results that a payload lacks, and return the complete payload.

    Raises `InvalidInput` if the payload is malformed.
    """
    payload = claimed.payload
    if isinstance(spec, HookSpec):
        return spec.fill_inputs(payload, await inputs.read(spec.ended_id(payload)))
    return fill_inputs(payload, await inputs.read(claimed.id))
