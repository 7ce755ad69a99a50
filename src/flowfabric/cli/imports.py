"""Load the app or task that `module:name` refers to. If there is none, suggest a similar name."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

import typer

from flowfabric.cli.output import complain

if TYPE_CHECKING:
    from flowfabric.app.app import App
    from flowfabric.app.task import Task

APP_HINT = "MODULE:APP"
APP_ARGUMENT = typer.Argument(
    metavar=APP_HINT, help="The app, for example `mail:app` for `app` in mail.py."
)
TASK_ARGUMENT = typer.Argument(
    metavar="MODULE:TASK", help="The task, for example `mail:send` for the task `send` in mail.py."
)

EXIT_BROKEN = 1


def check_app_reference(reference: str) -> None:
    """Refuse a reference to an app that does not have the form `module:app`."""
    _split(reference, "module:app", APP_HINT)


def load_app(reference: str) -> App:
    """Load the app `module:attribute`. Modules in the current folder can be imported."""
    from flowfabric.app.app import App

    hint = APP_HINT
    module_name, attribute = _split(reference, "module:app", hint)
    module = _load(module_name, hint)
    app = _attribute(module, attribute)
    if isinstance(app, App):
        return app
    apps = sorted(name for name, value in vars(module).items() if isinstance(value, App))
    hint_text = _suggestion(module_name, attribute, apps)
    raise typer.BadParameter(
        f"{module_name!r} has no App named {attribute!r}{hint_text}", param_hint=hint
    )


def load_task(reference: str) -> Task[..., Any, Any]:
    """Load the task `module:attribute`.

    The attribute is a variable of the module, or the name under which a task is registered.
    """
    from flowfabric.app.task import Task

    hint = "MODULE:TASK"
    module_name, attribute = _split(reference, "module:task", hint)
    module = _load(module_name, hint)
    value = _attribute(module, attribute)
    if isinstance(value, Task):
        return value
    known = _tasks(module)
    for task in known.values():
        if task.name == attribute:
            return task
    hint_text = _suggestion(module_name, attribute, sorted(known))
    raise typer.BadParameter(
        f"{module_name!r} has no task named {attribute!r}{hint_text}", param_hint=hint
    )


def near(word: str, known: Iterable[str], shown: Mapping[str, str] | None = None) -> str:
    """Return '; did you mean …?' with the most similar known word, or an empty string.

    If `shown` is given, it maps each known word to the text to print for it.
    """
    by_lower = {name.lower(): name for name in known}
    matches = get_close_matches(word.lower(), by_lower, n=1)
    if not matches:
        return ""
    name = by_lower[matches[0]]
    return f"; did you mean {name if shown is None else shown[name]}?"


def _suggestion(module_name: str, attribute: str, known: list[str]) -> str:
    """Return a text that suggests the most similar name, or lists up to ten known names."""
    references = {name: f"{module_name}:{name}" for name in known}
    if nearest := near(attribute, known, references):
        return nearest
    shown = [references[name] for name in known[:10]]
    return f"; it has {', '.join(shown)}{', …' if len(known) > 10 else ''}" if shown else ""


def print_traceback(error: BaseException, is_machinery: Callable[[TracebackType], bool]) -> None:
    """Print a traceback without the leading stack frames for which `is_machinery` is true."""
    trace = error.__traceback__
    while trace is not None and is_machinery(trace):
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace)
    typer.echo("".join(lines).rstrip(), err=True)


def _explain_import(error: BaseException, module_name: str) -> None:
    print_traceback(error, _is_machinery)
    complain(f"{module_name} cannot be imported")


def _split(reference: str, form: str, hint: str) -> tuple[str, str]:
    module_name, colon, attribute = reference.partition(":")
    if colon and module_name and attribute:
        return module_name, attribute
    instead = f"; write {_meant(module_name, attribute or form.partition(':')[2])}"
    raise typer.BadParameter(
        f"{reference!r} is not of the form {form}{instead if module_name else ''}", param_hint=hint
    )


def _meant(module_name: str, attribute: str) -> str:
    """Guess which reference the user meant by a file name, a module name or `module.attribute`."""
    if module_name.endswith(".py") or "/" in module_name:
        return f"{Path(module_name).stem}:{attribute}"
    if "." not in module_name and module_name not in _modules_beside(module_name):
        for file in sorted(Path.cwd().glob("*.py"), key=lambda file: (file.stem != "app", file)):
            if _defines(file, module_name):
                return f"{file.stem}:{module_name}"
    package, _, last = module_name.rpartition(".")
    is_module = last in (name.rpartition(".")[2] for name in _modules_beside(module_name))
    return f"{package}:{last}" if package and not is_module else f"{module_name}:{attribute}"


def _defines(file: Path, name: str) -> bool:
    """Return whether a file defines a function or variable with this name, without importing the
    file."""
    pattern = rf"^(?:(?:async )?def )?{re.escape(name)}\s*[(=:]"
    return re.search(pattern, file.read_text(errors="replace"), re.MULTILINE) is not None


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
            # The module itself exists, but one of its imports does not.
            _explain_import(error, module_name)
            raise typer.Exit(EXIT_BROKEN) from error
        beside = _modules_beside(module_name)
        instead = near(module_name, beside) if beside else "; run `flowfabric init` first"
        raise typer.BadParameter(
            f"there is no module {module_name!r}, neither in {here} nor installed{instead}",
            param_hint=hint,
        ) from error
    except typer.BadParameter:
        raise
    except Exception as error:
        _explain_import(error, module_name)
        raise typer.Exit(EXIT_BROKEN) from error


def _attribute(module: ModuleType, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _tasks(module: ModuleType) -> dict[str, Task[..., Any, Any]]:
    """Return the tasks of a module by the names of their variables.

    A task without a variable is listed by its own name.
    """
    from flowfabric.app.app import App
    from flowfabric.app.task import Task

    values = list(vars(module).items())
    tasks = {name: value for name, value in values if isinstance(value, Task)}
    named = {task.name for task in tasks.values()}
    for _, value in values:
        if isinstance(value, App):
            tasks |= {name: task for name, task in value.tasks.items() if name not in named}
    return tasks


def _modules_beside(module_name: str) -> list[str]:
    """Return the names of the modules in the folder where this module should be."""
    package, _, _ = module_name.rpartition(".")
    folder = Path.cwd().joinpath(*package.split(".")) if package else Path.cwd()
    prefix = f"{package}." if package else ""
    return [prefix + found.name for found in pkgutil.iter_modules([str(folder)])]


def _module_of(file: str) -> str:
    return ".".join(Path(file).with_suffix("").parts)


def _is_machinery(trace: TracebackType) -> bool:
    file = trace.tb_frame.f_code.co_filename
    return file in (__file__, importlib.__file__) or file.startswith("<frozen importlib")
