"""Encodes and decodes the values of frames: text, bytes or JSON.

A task can declare the type of its JSON values.
"""

from __future__ import annotations

from typing import Any

from pydantic import PydanticSchemaGenerationError, ValidationError

from flowfabric.core.errors import InvalidInput
from flowfabric.core.stream import FrameEncoding
from flowfabric.tasks.codec import codec_for, describe
from flowfabric.tasks.encoding_error import EncodingError

# The kind of a frame if the handler names none.
DEFAULT_KINDS = {
    FrameEncoding.TEXT: "text",
    FrameEncoding.JSON: "event",
    FrameEncoding.BYTES: "blob",
}


def check_streams(hint: Any) -> None:
    """Refuse a type whose values cannot be sent as JSON."""
    try:
        codec_for(hint)
    except PydanticSchemaGenerationError as error:
        raise InvalidInput(
            field="streams",
            problem=f"the type cannot be sent as JSON: {error.message.splitlines()[0]}",
        ) from None


def encode_frame(value: Any, hint: Any = Any) -> tuple[bytes, FrameEncoding]:
    """Encode the value of a frame. Text and bytes are sent as they are, anything else as JSON."""
    if isinstance(value, str):
        try:
            return value.encode(), FrameEncoding.TEXT
        except UnicodeEncodeError as error:
            raise InvalidInput(field="value", problem="is not valid Unicode") from error
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), FrameEncoding.BYTES
    try:
        return codec_for(hint).write_valid(value), FrameEncoding.JSON
    except ValidationError as error:
        problem = describe(error)
    except EncodingError as unfit:
        problem = unfit.describe()
    raise InvalidInput(field="value", problem=f"does not fit the stream of this task: {problem}")


def decode_frame(payload: bytes, hint: Any) -> Any:
    """Decode a JSON frame by the declared type."""
    try:
        return codec_for(hint).read(payload)
    except ValidationError as error:
        raise InvalidInput(
            field="streams", problem=f"a stored frame does not fit its type: {describe(error)}"
        ) from None
