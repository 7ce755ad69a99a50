"""Settings: read from variables, checked once, misspelt ones noticed."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path

import pytest

from flowfabric import config
from flowfabric.config import Settings, unknown_variables
from flowfabric.core.errors import InvalidInput


def test_nothing_set_is_the_default():
    assert Settings.from_environment({}) == Settings()
    assert Settings().database_url is None
    assert Settings().namespace == "default"
    assert Settings().lease_ttl == timedelta(seconds=30)


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("FLOWFABRIC_DATABASE_URL", "postgresql://x/y", "database_url", "postgresql://x/y"),
        ("DATABASE_URL", "postgresql://x/z", "database_url", "postgresql://x/z"),
        ("FLOWFABRIC_NAMESPACE", "shop", "namespace", "shop"),
        ("FLOWFABRIC_LEASE_TTL", "12.5", "lease_ttl", timedelta(seconds=12.5)),
        ("FLOWFABRIC_DRAIN_TIMEOUT", "0", "drain_timeout", timedelta(0)),
        ("FLOWFABRIC_LOG_FORMAT", "json", "log_format", "json"),
        ("FLOWFABRIC_LOG_LEVEL", "DEBUG", "log_level", "DEBUG"),
        ("FLOWFABRIC_EMBEDDED", "1", "embedded", True),
        ("FLOWFABRIC_EMBEDDED", "no", "embedded", False),
    ],
)
def test_each_variable_has_its_setting(variable, text, field, value):
    settings = Settings.from_environment({variable: text})
    assert getattr(settings, field) == value
    assert unknown_variables({variable: text}) == []


def test_our_own_url_goes_before_the_common_one():
    both = {"DATABASE_URL": "postgresql://a", "FLOWFABRIC_DATABASE_URL": "postgresql://b"}
    assert Settings.from_environment(both).database_url == "postgresql://b"


def test_the_embedded_server_goes_before_a_url_that_may_be_meant_for_others(tmp_path):
    common = {"DATABASE_URL": "postgresql://a", "FLOWFABRIC_EMBEDDED": "1"}
    assert Settings.from_environment(common).database_url is None
    (tmp_path / "flowfabric.toml").write_text('embedded = true\ndatabase_url = "postgresql://c"')
    assert Settings.from_environment({}, tmp_path).database_url is None
    ours = {"FLOWFABRIC_DATABASE_URL": "postgresql://b"}
    assert Settings.from_environment(ours, tmp_path) == Settings(database_url="postgresql://b")
    with pytest.raises(InvalidInput, match="contradicts FLOWFABRIC_DATABASE_URL"):
        Settings.from_environment({**ours, "FLOWFABRIC_EMBEDDED": "1"})


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("postgresql+asyncpg://u:p@h/d", "postgresql://u:p@h/d"),
        ("postgresql+psycopg://u@h:6432/d", "postgresql://u@h:6432/d"),
        ("postgres://h/d", "postgresql://h/d"),
        ("postgres+psycopg2://h/d?sslmode=require", "postgresql://h/d?sslmode=require"),
        ("postgresql+asyncpg://h/d?ssl=require&x=1", "postgresql://h/d?sslmode=require&x=1"),
        ("postgresql+asyncpg://h/d?prepared_statement_cache_size=0", "postgresql://h/d"),
        ("postgresql://u:a+b@h/d?options=-c%20x%3D1", "postgresql://u:a+b@h/d?options=-c%20x%3D1"),
        ("mysql://h/d", "mysql://h/d"),
    ],
)
def test_a_url_for_sqlalchemy_is_one_for_us(url, found):
    assert Settings.from_environment({"DATABASE_URL": url}).database_url == found


def test_an_empty_variable_counts_as_not_set():
    empty = dict.fromkeys(config.VARIABLES, "")
    assert Settings.from_environment(empty) == Settings()


@pytest.mark.parametrize(
    ("variable", "text", "field"),
    [
        ("FLOWFABRIC_LEASE_TTL", "soon", "FLOWFABRIC_LEASE_TTL"),
        ("FLOWFABRIC_LEASE_TTL", "nan", "FLOWFABRIC_LEASE_TTL"),
        ("FLOWFABRIC_LEASE_TTL", "1e400", "FLOWFABRIC_LEASE_TTL"),
        ("FLOWFABRIC_LEASE_TTL", "0.5", "lease_ttl"),
        ("FLOWFABRIC_LEASE_TTL", "86401", "lease_ttl"),
        ("FLOWFABRIC_DRAIN_TIMEOUT", "-1", "drain_timeout"),
        ("FLOWFABRIC_DRAIN_TIMEOUT", "1 minute", "FLOWFABRIC_DRAIN_TIMEOUT"),
        ("FLOWFABRIC_LOG_FORMAT", "xml", "log_format"),
        ("FLOWFABRIC_NAMESPACE", "two words", "namespace"),
        ("FLOWFABRIC_EMBEDDED", "perhaps", "FLOWFABRIC_EMBEDDED"),
        ("FLOWFABRIC_NAMESPACE", "x" * 257, "namespace"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(variable, text, field):
    with pytest.raises(InvalidInput) as caught:
        Settings.from_environment({variable: text})
    assert caught.value.field == field


def test_a_misspelt_variable_is_noticed():
    assert unknown_variables({"FLOWFABRIC_LEASE_TLL": "3", "PATH": "/", "DATABASE_URL": ""}) == [
        "FLOWFABRIC_LEASE_TLL is not a variable of flowfabric; did you mean FLOWFABRIC_LEASE_TTL?"
    ]


def test_a_variable_like_none_of_ours_gets_no_suggestion():
    name = f"FLOWFABRIC_{'Q' * 40}"
    assert unknown_variables({name: "1"}) == [f"{name} is not a variable of flowfabric"]


def test_every_sentence_is_given_in_order():
    given = {"FLOWFABRIC_B": "", "FLOWFABRIC_A": "", "FLOWFABRIC_NAMESPACE": "x"}
    assert [text.split()[0] for text in unknown_variables(given)] == [
        "FLOWFABRIC_A",
        "FLOWFABRIC_B",
    ]


def test_without_an_argument_the_real_environment_is_read(monkeypatch):
    monkeypatch.setattr(os, "environ", {"FLOWFABRIC_NAMESPACE": "here", "FLOWFABRIC_X": "1"})
    assert Settings.from_environment().namespace == "here"
    assert len(unknown_variables()) == 1


def test_settings_cannot_be_changed():
    with pytest.raises(AttributeError):
        Settings().namespace = "other"  # type: ignore[misc]


def test_every_variable_the_package_reads_is_known():
    """Whoever reads a new one adds it to VARIABLES, else a user is told it does not exist."""
    folder = Path(config.__file__).parent
    read = {
        name
        for file in folder.rglob("*.py")
        for name in re.findall(r"[\"'](FLOWFABRIC_[A-Z_]+)[\"']", file.read_text(encoding="utf-8"))
    }
    assert read <= config.VARIABLES


# The project's file


def test_the_file_stands_behind_the_environment_and_before_the_defaults(tmp_path):
    (tmp_path / "flowfabric.toml").write_text(
        'database_url = "postgresql://file"\nnamespace = "file"\nlease_ttl = 12.5\n'
    )

    settings = Settings.from_environment({"FLOWFABRIC_NAMESPACE": "env"}, tmp_path)

    assert settings.namespace == "env"
    assert settings.database_url == "postgresql://file"
    assert settings.lease_ttl == timedelta(seconds=12.5)
    assert settings.log_format == "text"
    beaten = Settings.from_environment({"DATABASE_URL": "postgresql://env"}, tmp_path)
    assert beaten.database_url == "postgresql://env"


def test_pyproject_has_a_table_for_it_unless_there_is_a_file_of_its_own(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.flowfabric]\nnamespace = "project"\n')
    assert Settings.from_environment({}, tmp_path).namespace == "project"

    (tmp_path / "flowfabric.toml").write_text("")
    assert Settings.from_environment({}, tmp_path) == Settings()


@pytest.mark.parametrize("text", ["", "[tool]\n", "[tool.other]\nnamespace = 1\n", "tool = 1\n"])
def test_a_pyproject_without_the_table_says_nothing(tmp_path, text):
    (tmp_path / "pyproject.toml").write_text(text)

    assert Settings.from_environment({}, tmp_path) == Settings()


@pytest.mark.parametrize(
    ("text", "field", "problem"),
    [
        ('name_space = "a"', "flowfabric.toml: name_space", "did you mean namespace?"),
        ("zzz = 1", "flowfabric.toml: zzz", "known settings: database_url, embedded, namespace"),
        ("embedded = 1", "flowfabric.toml: embedded", "must be true or false"),
        ("namespace = 5", "flowfabric.toml: namespace", "must be a text"),
        ('lease_ttl = "soon"', "flowfabric.toml: lease_ttl", "must be a number of seconds"),
        ("lease_ttl = true", "flowfabric.toml: lease_ttl", "must be a number of seconds"),
        ("namespace =", "flowfabric.toml", "cannot be read as TOML"),
    ],
)
def test_a_file_that_says_something_else_is_named_with_what_is_near(tmp_path, text, field, problem):
    (tmp_path / "flowfabric.toml").write_text(text)

    with pytest.raises(InvalidInput) as caught:
        Settings.from_environment({}, tmp_path)

    assert caught.value.field == field
    assert problem in caught.value.problem


def test_the_file_of_the_current_folder_is_read(tmp_path, monkeypatch):
    (tmp_path / "flowfabric.toml").write_text('log_level = "DEBUG"')
    monkeypatch.chdir(tmp_path)

    assert Settings.from_environment().log_level == "DEBUG"


def test_a_database_url_that_is_no_text_is_refused_where_it_is_given():
    with pytest.raises(InvalidInput) as caught:
        Settings(database_url=5)  # type: ignore[arg-type]
    assert caught.value.field == "database_url"
