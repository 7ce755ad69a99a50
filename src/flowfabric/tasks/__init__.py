"""Tasks: registered functions, how arguments and results are stored, what surrounds a call."""

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
    Placeholder,
    describe_arguments,
    encode_argument,
    fill_inputs,
    leaf_values,
    make_template,
)
from flowfabric.tasks.middleware import CallNext, check_middleware
from flowfabric.tasks.payloads import UNFILLED_ENCODINGS, fill_payload
from flowfabric.tasks.providers import provided
from flowfabric.tasks.spec import OnChange, TaskSpec, task_name

__all__ = [
    "INPUTS_ENCODING",
    "UNFILLED_ENCODINGS",
    "ArgumentTemplate",
    "CallNext",
    "Extensions",
    "HandlerContext",
    "Hook",
    "HookSpec",
    "Inputs",
    "OnChange",
    "Placeholder",
    "TaskSpec",
    "accepts_none",
    "check_middleware",
    "describe_arguments",
    "encode_argument",
    "failure_of",
    "fill_inputs",
    "fill_payload",
    "leaf_values",
    "make_template",
    "provided",
    "task_name",
    "type_text",
]
