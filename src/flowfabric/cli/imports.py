"""`module:name` references, as people type them: what they load, and what is near a wrong one."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import traceback
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import typer

from flowfabric.app.app import App
from flowfabric.app.task import Task
from flowfabric.cli.output import complain

APP_ARGUMENT = typer.Argument(
    metavar="MODULE:APP", help="Where the app is, for example `mail:app` for `app` in mail.py."
)
TASK_ARGUMENT = typer.Argument(
    metavar="MODULE:TASK", help="For example `mail:send` for the task `send` in mail.py."
)

EXIT_BROKEN = 1


def check_app_reference(reference: str) -> None:
    """Refuse what names no app whatever the files hold."""
    _split(reference, "module:app", "MODULE:APP")


def load_app(reference: str) -> App:
    """The app that `module:attribute` names, with the current folder importable."""
    hint = "MODULE:APP"
    module_name, attribute = _split(reference, "module:app", hint)
    module = _load(module_name, hint)
    app = _attribute(module, attribute)
    if isinstance(app, App):
        return app
    apps = sorted(name for name, value in vars(module).items() if isinstance(value, App))
    told = _instead(module_name, attribute, apps)
    raise typer.BadParameter(
        f"{module_name!r} has no App named {attribute!r}{told}", param_hint=hint
    )


def load_task(reference: str) -> Task[..., Any, Any]:
    """The task that `module:attribute` names; the name it is registered under will do, too."""
    hint = "MODULE:TASK"
    module_name, attribute = _split(reference, "module:task", hint)
    module = _load(module_name, hint)
    found = _attribute(module, attribute)
    if isinstance(found, Task):
        return found
    known = _tasks(module)
    for task in known.values():
        if task.name == attribute:
            return task
    told = _instead(module_name, attribute, sorted(known))
    raise typer.BadParameter(
        f"{module_name!r} has no task named {attribute!r}{told}", param_hint=hint
    )


def near(word: str, known: Iterable[str], shown: Mapping[str, str] | None = None) -> str:
    """`; did you mean ...?` for the nearest of what is known, if one is near."""
    by_lower = {name.lower(): name for name in known}
    found = get_close_matches(word.lower(), by_lower, n=1)
    if not found:
        return ""
    name = by_lower[found[0]]
    return f"; did you mean {name if shown is None else shown[name]}?"


def _instead(module_name: str, attribute: str, known: list[str]) -> str:
    """The nearest, or else all there are."""
    references = {name: f"{module_name}:{name}" for name in known}
    if found := near(attribute, known, references):
        return found
    shown = [references[name] for name in known[:10]]
    return f"; it has {', '.join(shown)}{', …' if len(known) > 10 else ''}" if shown else ""


def explain_import(error: BaseException, module_name: str) -> None:
    """Tell why a module could not be imported: its own frames, not those of the machinery."""
    trace = error.__traceback__
    while trace is not None and _is_machinery(trace):
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace)
    typer.echo("".join(lines).rstrip(), err=True)
    complain(f"{module_name} cannot be imported")


def _split(reference: str, form: str, hint: str) -> tuple[str, str]:
    module_name, colon, attribute = reference.partition(":")
    if colon and module_name and attribute:
        return module_name, attribute
    path = Path(module_name)
    instead = f"; write {path.stem}:{attribute or form.partition(':')[2]}"
    raise typer.BadParameter(
        f"{reference!r} is not of the form {form}{instead if module_name else ''}", param_hint=hint
    )


def _load(module_name: str, hint: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if module_name.endswith(".py") and Path(module_name).is_file():
        raise typer.BadParameter(
            f"{module_name!r} is a file; write the module, {_module_of(module_name)!r}",
            param_hint=hint,
        )
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            # It is there, but imports something that is not.
            explain_import(error, module_name)
            raise typer.Exit(EXIT_BROKEN) from error
        raise typer.BadParameter(
            f"there is no module {module_name!r} in {here} or installed"
            f"{near(module_name, _modules_beside(module_name))}",
            param_hint=hint,
        ) from error
    except typer.BadParameter:
        raise
    except Exception as error:
        explain_import(error, module_name)
        raise typer.Exit(EXIT_BROKEN) from error


def _attribute(module: ModuleType, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _tasks(module: ModuleType) -> dict[str, Task[..., Any, Any]]:
    """The tasks of a module by the names of its variables; those of its apps that have none, by
    the names they are registered under."""
    values = list(vars(module).items())
    found = {name: value for name, value in values if isinstance(value, Task)}
    named = {task.name for task in found.values()}
    for _, value in values:
        if isinstance(value, App):
            found |= {name: task for name, task in value.tasks.items() if name not in named}
    return found


def _modules_beside(module_name: str) -> list[str]:
    """What could have been meant: the modules of the folder it would be in."""
    package, _, _ = module_name.rpartition(".")
    folder = Path.cwd().joinpath(*package.split(".")) if package else Path.cwd()
    prefix = f"{package}." if package else ""
    return [prefix + found.name for found in pkgutil.iter_modules([str(folder)])]


def _module_of(file: str) -> str:
    return ".".join(Path(file).with_suffix("").parts)


def _is_machinery(trace: TracebackType) -> bool:
    file = trace.tb_frame.f_code.co_filename
    return file in (__file__, importlib.__file__) or file.startswith("<frozen importlib")
