"""JSON text is read by its standard, not by Python's."""

from __future__ import annotations

import pytest

from flowfabric.core.json_text import NotFinite, read_json


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("NaN", ()),
        ("[1, Infinity]", ("1",)),
        ('{"a": {"b": [0, {"c": -Infinity}]}}', ("a", "b", "1", "c")),
        ('{"a": 1e400}', ("a",)),
        ('{"a": -1e400}', ("a",)),
        (b'{"a": NaN}', ("a",)),
        ('{"a": NaN, "a": 1}', ()),
        ("[" * 900 + "NaN" + "]" * 900, ("0",) * 900),
    ],
)
def test_a_number_that_json_does_not_have_is_found(text, path):
    with pytest.raises(NotFinite) as refused:
        read_json(text)
    assert refused.value.path == path


@pytest.mark.parametrize("text", ['"NaN"', "1.5", "-1e308", '{"NaN": "Infinity"}', "[1, null]"])
def test_everything_else_is_read_as_python_reads_it(text):
    assert read_json(text) == eval(text.replace("null", "None"))


@pytest.mark.parametrize(("text", "error"), [("{", ValueError), ("[" * 100_000, RecursionError)])
def test_what_is_not_json_is_refused(text, error):
    with pytest.raises(error):
        read_json(text)
