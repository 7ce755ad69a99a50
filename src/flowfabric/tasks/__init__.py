"""Tasks: registered functions, the encoding of their values, middleware and providers."""

from __future__ import annotations

from flowfabric.tasks.assignability import accepts_none, type_text
from flowfabric.tasks.extensions import Extensions, Hook
from flowfabric.tasks.failures import failure_of
from flowfabric.tasks.handler_context import HandlerContext
from flowfabric.tasks.hook_spec import HookSpec
from flowfabric.tasks.inputs import (
    INPUTS_ENCODING,
    ArgumentTemplate,
    Inputs,
    describe_arguments,
    encode_argument,
    fill_inputs,
    make_template,
)
from flowfabric.tasks.limits import NO_LIMITS, Limits
from flowfabric.tasks.middleware import CallNext, check_middleware
from flowfabric.tasks.payloads import UNFILLED_ENCODINGS, fill_payload
from flowfabric.tasks.placeholders import Placeholder, leaf_values
from flowfabric.tasks.providers import provided
from flowfabric.tasks.signals import encode_signal
from flowfabric.tasks.spec import OnChange, TaskSpec, task_name

__all__ = [
    "INPUTS_ENCODING",
    "NO_LIMITS",
    "UNFILLED_ENCODINGS",
    "ArgumentTemplate",
    "CallNext",
    "Extensions",
    "HandlerContext",
    "Hook",
    "HookSpec",
    "Inputs",
    "Limits",
    "OnChange",
    "Placeholder",
    "TaskSpec",
    "accepts_none",
    "check_middleware",
    "describe_arguments",
    "encode_argument",
    "encode_signal",
    "failure_of",
    "fill_inputs",
    "fill_payload",
    "leaf_values",
    "make_template",
    "provided",
    "task_name",
    "type_text",
]
