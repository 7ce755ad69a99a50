"""The engine's refusals, the error classes and their description are the same list."""

from __future__ import annotations

import copy
import inspect
import pickle
import re

import pytest

import flowfabric
from flowfabric.core import errors
from flowfabric.core.errors import FlowFabricError
from support.cases import for_each

from .sources import public_functions, sql_files

CLASSES = sorted(
    (
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, FlowFabricError)
    ),
    key=lambda kind: kind.__name__,
)
BY_CODE = {kind.code: kind for kind in CLASSES if kind.code}
BY_NAME = {kind.name: kind for kind in CLASSES if kind.name}

# An answer, not a refusal: the item stands for something that is there already.
ANSWERS = {"duplicate"}


def raised_in_sql() -> dict[str, set[str]]:
    """The codes that SQL raises, with the names they are raised under."""
    found: dict[str, set[str]] = {}
    for file in sql_files("shared", "functions"):
        for code, name in re.findall(r"ff\._refuse\(\s*'(\w+)',\s*'(\w+)'", file.statements):
            found.setdefault(code, set()).add(name)
    return found


def refused_in_headers() -> dict[str, set[str]]:
    """The words and codes of each public function's Refuses field."""
    found = {}
    for file in public_functions():
        text = re.sub(r"\([^)]*\)|per item:|as outcome:", "", file.fields["Refuses"])
        found[file.name] = {word.strip() for word in re.split(r"[·,]", text) if word.strip()}
    return found


def test_a_code_that_sql_raises_has_its_class():
    for code, names in raised_in_sql().items():
        assert code in BY_CODE, f"{code} has no class"
        assert len(names) == 1, f"{code} goes by {names}"


def test_every_refuse_in_sql_is_understood_here():
    calls = sum(
        file.code.count("ff._refuse(")
        for file in sql_files("shared", "functions")
        if file.name != "_refuse"
    )
    literal = sum(
        len(re.findall(r"ff\._refuse\(\s*'WF\d{3}',\s*'\w+'", file.statements))
        for file in sql_files("shared", "functions")
    )
    assert calls == literal


def test_no_other_sqlstate_of_ours_is_raised():
    for file in sql_files("shared", "functions"):
        codes = set(re.findall(r"\bWF\d{3}\b", file.text))
        assert codes <= set(BY_CODE), file.id


def test_the_words_of_the_headers_are_the_names_of_the_classes():
    words = set().union(*refused_in_headers().values())
    codes = {word.split()[0] for word in words if word.startswith("WF")}
    names = {word for word in words if not word.startswith("WF")} - ANSWERS
    assert codes <= set(raised_in_sql())
    known = names | {BY_CODE[code].name for code in raised_in_sql()}
    assert known == set(BY_NAME)


def test_a_header_gives_a_code_its_name():
    raised = raised_in_sql()
    for function, words in refused_in_headers().items():
        for word in words:
            if word.startswith("WF"):
                code, name = word.split()
                assert raised[code] == {name}, function


def test_a_header_names_each_code_its_function_raises():
    for file in public_functions():
        raised = set(re.findall(r"ff\._refuse\(\s*'(\w+)'", file.statements))
        assert raised <= set(re.findall(r"WF\d{3}", file.fields["Refuses"])), file.id


@for_each("word", sorted(set(BY_NAME) - {"route_collision"}))
def test_a_word_is_written_somewhere_in_sql(word):
    assert any(f"'{word}'" in file.statements for file in sql_files("shared", "functions"))


def test_codes_are_grouped_by_what_to_do():
    """WF0 fix the call, WF1 lease lost, WF2 refused, WF3 not found, WF4 conflict, WF5 not
    for this login."""
    groups = {
        "0": errors.InvalidInput,
        "1": errors.LeaseLost,
        "2": errors.Refused,
        "3": errors.NotFound,
        "4": errors.Conflict,
        "5": errors.Forbidden,
    }
    for code, kind in BY_CODE.items():
        assert re.fullmatch(r"WF\d{3}", code)
        assert issubclass(kind, groups[code[2]]), kind


@for_each("kind", CLASSES)
def test_an_error_survives_a_pickle(kind):
    error = kind("what happened", execution_id="{fp:0}:x", epoch=3)
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is kind
        assert str(twin) == "what happened"
        assert twin.facts == error.facts


def test_an_invalid_input_keeps_its_field_over_a_pickle():
    error = errors.InvalidInput(field="lane", problem="must not be empty")
    twin = pickle.loads(pickle.dumps(error))
    assert (twin.field, twin.problem) == ("lane", "must not be empty")
    assert str(twin) == str(error) == "lane: must not be empty"


@for_each("kind", CLASSES)
def test_an_error_says_something_by_itself(kind):
    assert kind.__doc__
    assert str(kind()) == " ".join(kind.__doc__.split())


@for_each("key", [*BY_CODE, *BY_NAME])
def test_the_engine_s_word_becomes_the_error(key):
    kind = BY_CODE.get(key) or BY_NAME[key]
    error = FlowFabricError.from_engine(key, {"field": "lane", "problem": "is odd"})
    assert type(error) is kind
    assert error.facts["field"] == "lane"


def test_an_unknown_word_is_still_our_error():
    error = FlowFabricError.from_engine("WF999", {"why": "later release"})
    assert type(error) is FlowFabricError
    assert "WF999" in str(error)


def test_two_classes_never_share_a_code():
    with pytest.raises(TypeError, match="share WF001"):
        type("Another", (FlowFabricError,), {}, code="WF001")


def drawn_tree() -> dict[str, str]:
    """Child and parent as the docstring of the module draws them."""
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"([│├└─ ]*)([A-Z]\w+(?: · [A-Z]\w+)*)(?:\s{2,}.*)?$", line)
        if not match or (not match[1] and match[2] != "FlowFabricError"):
            continue
        depth = len(match[1]) // 4
        for name in match[2].split(" · "):
            if depth:
                parents[name] = path[depth - 1]
            path[depth:] = [name]
    return parents


def test_the_tree_in_the_docstring_is_the_tree():
    real = {
        kind.__name__: kind.__mro__[1].__name__ for kind in CLASSES if kind is not FlowFabricError
    }
    assert drawn_tree() == real


def test_a_public_error_is_one_of_these():
    public = {
        value
        for name in flowfabric.__all__
        if inspect.isclass(value := getattr(flowfabric, name)) and issubclass(value, Exception)
    }
    # Handlers raise these two; flowfabric never does.
    assert public - {flowfabric.GiveUp, flowfabric.RetryAfter} <= set(CLASSES)
