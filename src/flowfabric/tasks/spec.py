"""The worker's view of a task: a function, its options, and the codecs of its type hints."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NotRequired, TypeAlias, get_args, get_type_hints

from pydantic import PydanticSchemaGenerationError, ValidationError
from typing_extensions import TypedDict

from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import (
    DEFAULT_LANE,
    MAX_NAME_BYTES,
    check_lane,
    check_max_reclaims,
    check_name,
    check_priority,
    check_tags,
    check_text,
)
from flowfabric.core.policy import (
    TASK_MAX_RECLAIMS,
    Retry,
    StreamPolicy,
    capability_set,
    milliseconds,
    policy_json,
)
from flowfabric.core.task import MAX_SCHEMA_BYTES, TaskDeclaration
from flowfabric.tasks.codec import Codec, describe, path_text, problems
from flowfabric.tasks.encoding_error import EncodingError
from flowfabric.tasks.frames import check_streams, decode_frame
from flowfabric.tasks.handler_context import HandlerContext, is_context
from flowfabric.tasks.limits import NO_LIMITS, Limits
from flowfabric.tasks.providers import Providers, provided, wanted_type
from flowfabric.tasks.signals import check_signals, declared_schemas, encode_signal

_BY_POSITION = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)
_POSITIONAL = inspect.Parameter.VAR_POSITIONAL
_NAMED = inspect.Parameter.VAR_KEYWORD

# What happens to an execution when the code no longer fits its journal.
OnChange: TypeAlias = Literal["hold", "restart"]


@dataclass(frozen=True)
class TaskSpec:
    """One registered function with its options."""

    function: Callable[..., Any]
    name: str
    lane: str = DEFAULT_LANE
    priority: int = 0
    needs: frozenset[str] = frozenset()
    retry: Retry | None = None
    timeout: timedelta | None = None
    deadline: timedelta | None = None
    max_reclaims: int = TASK_MAX_RECLAIMS
    retention: timedelta | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    version: str | None = None
    on_change: OnChange = "hold"
    # The types of the signals that the task takes, by name. Without declared types, the task takes
    # every signal.
    signals: Mapping[str, Any] = field(default_factory=dict)
    # The type of the values that the task streams as JSON.
    streams: Any = Any
    stream_policy: StreamPolicy | None = None
    limits: Limits = NO_LIMITS
    providers: Providers = field(default_factory=Providers, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_name("name", self.name)
        if self.version is not None:
            check_text("version", self.version, MAX_NAME_BYTES)
        if self.on_change not in ("hold", "restart"):
            raise InvalidInput(field="on_change", problem="must be 'hold' or 'restart'")
        check_lane(self.lane)
        check_priority(self.priority)
        check_max_reclaims(self.max_reclaims)
        check_tags(self.tags)
        object.__setattr__(self, "needs", capability_set(self.needs))
        if self.retry is not None and not isinstance(self.retry, Retry):
            raise InvalidInput(
                field="retry", problem=f"must be a Retry, not {type(self.retry).__name__}"
            )
        check_signals(self.signals)
        check_streams(self.streams)
        if self.stream_policy is not None and not isinstance(self.stream_policy, StreamPolicy):
            raise InvalidInput(
                field="stream_policy",
                problem=f"must be a StreamPolicy, not {type(self.stream_policy).__name__}",
            )
        _ = self.policy
        if self.deadline is not None:
            milliseconds("deadline", self.deadline, least=1)
        self.limits.check(self)

    @cached_property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    @cached_property
    def policy(self) -> str | None:
        return policy_json(
            retry=self.retry,
            timeout=self.timeout,
            retention=self.retention,
            stream=self.stream_policy,
        )

    @cached_property
    def _hints(self) -> dict[str, Any]:
        try:
            return get_type_hints(self.function, include_extras=True)
        except NameError as error:
            raise InvalidInput(
                field=f"task {self.name}",
                problem=f"its type hints name something that cannot be found: {error}",
            ) from error

    @cached_property
    def signature(self) -> inspect.Signature:
        """The parameters that a caller passes.

        They do not include the context, or parameters that a provider fills.
        """
        signature = inspect.signature(self.function)
        return signature.replace(
            parameters=[
                p
                for p in signature.parameters.values()
                if p.name != self.context_name and p.name not in self.provided
            ]
        )

    @cached_property
    def keywords(self) -> frozenset[str]:
        """The parameters that a caller can pass by name."""
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        return frozenset(p.name for p in self.signature.parameters.values() if p.kind in kinds)

    @property
    def takes_any_keyword(self) -> bool:
        return any(p.kind is p.VAR_KEYWORD for p in self.signature.parameters.values())

    @cached_property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.function).parameters

    @cached_property
    def context_name(self) -> str | None:
        """The name of the parameter annotated with Context, or None."""
        for name, hint in self._hints.items():
            if name != "return" and any(map(is_context, (hint, *get_args(hint)))):
                return name
        return None

    @cached_property
    def provided(self) -> Mapping[str, Any]:
        """The parameters that the worker provides, with their types."""
        found: dict[str, Any] = {}
        for name, parameter in self._parameters.items():
            wanted = wanted_type(self._hints.get(name, Any))
            if parameter.kind in (_POSITIONAL, _NAMED):
                continue
            if parameter.default is provided or wanted in self.providers:
                found[name] = wanted
        return found

    @cached_property
    def _positions(self) -> Mapping[str, int]:
        """The positions of the parameters that can be passed by position."""
        return {
            name: position
            for position, (name, parameter) in enumerate(self._parameters.items())
            if parameter.kind in _BY_POSITION
        }

    def insert_provided(
        self, args: list[Any], kwargs: dict[str, Any], values: Mapping[str, Any]
    ) -> None:
        """Insert provided values into the arguments that `decode` returned."""
        for name, value in values.items():
            if (position := self._positions.get(name)) is not None:
                args[position] = value
            else:
                kwargs[name] = value

    def declaration(self, *, with_schemas: bool = True) -> TaskDeclaration:
        """Return what the registry of tasks stores about this task."""
        return TaskDeclaration(
            task=self.name,
            version=self.version,
            arguments=_storable_schema(self._arguments.json_schema()) if with_schemas else None,
            result=_storable_schema(self._result.json_schema()) if with_schemas else None,
            limits=[one.to_json() for one in self.limits.all],
            signals=declared_schemas(self.signals),
        )

    def check(self) -> None:
        """Refuse a function if its arguments or its result cannot be stored."""
        _ = self._arguments, self._result

    def reset(self) -> None:
        """Clear the cached properties: a new provider changes which parameters a caller passes."""
        for name in set(vars(self)) - set(self.__dataclass_fields__):
            del self.__dict__[name]

    @cached_property
    def _arguments(self) -> Codec:
        fields: dict[str, Any] = {}
        for parameter in self.signature.parameters.values():
            hint = self.argument_hint(parameter.name)
            is_needed = parameter.default is inspect.Parameter.empty and parameter.kind not in (
                _POSITIONAL,
                _NAMED,
            )
            fields[parameter.name] = hint if is_needed else NotRequired[hint]
        return self._codec(
            TypedDict("Arguments", fields),  # type: ignore[operator]
            "its parameters",
            is_call=True,
        )

    def argument_hint(self, name: str) -> Any:
        """Return the type of a parameter: for `*args` a list, for `**kwargs` a dict."""
        hint: Any = self._hints.get(name, Any)
        kind = self.signature.parameters[name].kind
        if kind is _POSITIONAL:
            return list.__class_getitem__(hint)
        return dict.__class_getitem__((str, hint)) if kind is _NAMED else hint

    @property
    def result_hint(self) -> Any:
        """The type of the result; Any if the function declares no type."""
        return self._hints.get("return", Any)

    @cached_property
    def _result(self) -> Codec:
        return self._codec(self.result_hint, "its result")

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Encode arguments as a payload.

        Raises `InvalidInput` if an argument is wrong. The error names the argument.
        """
        # Bind first, because the error for a missing argument is clearer.
        bound = self.bind(args, kwargs)
        try:
            return self._arguments.write_valid(bound)
        except (ValidationError, EncodingError):
            pass  # The code below raises without this cause, because the cause shows the value.
        return self._encode(args, kwargs)[1]

    def encode_comparable(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[bytes, bytes]:
        """Encode arguments as a payload, and in a second form that is the same for equal arguments.

        The payload itself keeps the iteration order of sets and mappings.
        """
        arguments, payload = self._encode(args, kwargs)
        try:
            written = _ordered(arguments, json.loads(payload))
        except ValueError:  # a number has more digits than Python reads
            return payload, payload
        return payload, json.dumps(written, sort_keys=True).encode()

    def _encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, bytes]:
        """Return the validated arguments, and their JSON."""
        arguments = self.bind(args, kwargs)
        codec = self._arguments
        try:
            valid = codec.validated(arguments)
            return valid, codec.write(valid)
        except ValidationError as error:
            at, problem = problems(error)[0]
            field = path_text(at) or "arguments"
            problem = describe(error).removeprefix(f"{field}: ")
        except EncodingError as unfit:
            field = unfit.field() or codec.unfit_part(valid) or "arguments"
            problem = unfit.problem
        # Raise without the cause, because the cause shows the value.
        raise InvalidInput(field=field, problem=f"{problem} (argument of {self.name})")

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments by parameter name."""
        if not kwargs and len(args) == len(self._plain_names):
            return dict(zip(self._plain_names, args, strict=True))
        try:
            arguments = dict(self.signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise InvalidInput(field=f"arguments of {self.name}", problem=str(error)) from error
        for name, value in arguments.items():
            if isinstance(value, tuple) and self.signature.parameters[name].kind is _POSITIONAL:
                arguments[name] = list(value)
        return arguments

    @cached_property
    def _plain_names(self) -> tuple[str, ...]:
        """The parameter names; empty if one cannot be passed both by position and by name."""
        parameters = self.signature.parameters.values()
        is_plain = all(p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in parameters)
        return tuple(p.name for p in parameters) if is_plain else ()

    def decode(
        self, payload: bytes | None, context: HandlerContext | None = None
    ) -> tuple[list[Any], dict[str, Any]]:
        """Decode a payload to the positional and keyword arguments of the function.

        If the function takes a context, the arguments include `context`.
        """
        arguments = self.decode_arguments(payload)
        if self.context_name is not None:
            arguments[self.context_name] = context
        elif arguments and not self.provided and len(arguments) == len(self._plain_names):
            return [arguments[name] for name in self._plain_names], {}
        return self._arranged(arguments)

    def decode_arguments(self, payload: bytes | None) -> dict[str, Any]:
        """Decode a payload to a dict of the arguments that the caller passed."""
        try:
            arguments: dict[str, Any] = self._arguments.read(payload or b"{}")
        except ValidationError as error:
            raise InvalidInput(
                field="payload",
                problem=f"it does not fit the parameters of {self.name}: {describe(error)}",
            ) from None
        return arguments

    def _arranged(self, arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Split a dict of all arguments into positional and keyword arguments."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, parameter in self._parameters.items():
            if parameter.kind is _POSITIONAL:
                args.extend(arguments.get(name, ()))
            elif parameter.kind is _NAMED:
                kwargs.update(arguments.get(name, {}))
            elif parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
                # Pass the default of a missing argument, so that later arguments keep their order.
                args.append(arguments.get(name, parameter.default))
            elif name in arguments:
                kwargs[name] = arguments[name]
        return args, kwargs

    def encode_result(self, value: Any) -> bytes:
        """Encode a result. Raises `InvalidInput` if the result cannot be stored."""
        try:
            return self._result.write(value)
        except EncodingError as unfit:
            field, problem = unfit.field("result"), unfit.problem
        by = " as its type hint says" if "return" in self._hints else ""
        raise InvalidInput(
            field=field, problem=f"the result of {self.name} cannot be stored{by}: {problem}"
        )

    def encode_signal(self, name: str, value: Any) -> bytes:
        """Encode the value of a signal by its declared type; refuse a signal that is not
        declared."""
        return encode_signal(name, value, self.signals, task=self.name)

    def decode_frame(self, payload: bytes) -> Any:
        """Decode a JSON frame by the type that the task streams."""
        return decode_frame(payload, self.streams)

    def decode_result(self, stored: bytes | None) -> Any:
        """Decode a stored result by the type hint."""
        if stored is None:
            return None
        try:
            return self._result.read(stored)
        except ValidationError as error:
            raise InvalidInput(
                field="result",
                problem=f"the stored result of {self.name} does not fit its present type: "
                f"{describe(error)}",
            ) from None

    def _codec(self, hint: Any, what: str, *, is_call: bool = False) -> Codec:
        try:
            return Codec(hint, is_call=is_call)
        except PydanticSchemaGenerationError as error:
            raise InvalidInput(
                field=f"task {self.name}",
                problem=f"{what} cannot be stored as JSON: {error.message.splitlines()[0]} "
                "(to let a worker provide a value, use app.provide)",
            ) from error


def _storable_schema(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the schema if the registry can store it; None if it is too large."""
    return schema if schema and len(json.dumps(schema)) <= MAX_SCHEMA_BYTES else None


def _ordered(value: Any, written: Any) -> Any:
    """Return a copy of `written`, the JSON data of `value`, with the items of sets sorted."""
    if isinstance(written, list):
        if not isinstance(value, list | tuple | Set) or len(value) != len(written):
            return written
        items = [_ordered(*pair) for pair in zip(value, written, strict=True)]
        return sorted(items, key=_sorted_json) if isinstance(value, Set) else items
    if not isinstance(written, dict):
        return written
    if isinstance(value, Mapping):
        if len(value) != len(written):
            return written
        pairs = zip(value.values(), written.items(), strict=True)
        return {name: _ordered(inner, item) for inner, (name, item) in pairs}
    return {name: _ordered(getattr(value, name, None), item) for name, item in written.items()}


def _sorted_json(written: Any) -> str:
    return json.dumps(written, sort_keys=True)


def task_name(function: Callable[..., Any]) -> str:
    """Return `module.qualname`. Functions of a script are named after its file."""
    module = function.__module__
    if module == "__main__":
        main = getattr(sys.modules.get("__main__"), "__file__", None)
        module = Path(main).stem if main else "main"
    return f"{module}.{function.__qualname__}"
