"""`flowfabric init`: write a small first app."""

from __future__ import annotations

from pathlib import Path

import typer

from flowfabric.cli.options import EXIT_CONFLICT
from flowfabric.cli.output import complain
from flowfabric.config import Settings
from flowfabric.core.errors import Unavailable
from flowfabric.drawing.text import printable
from flowfabric.embedded import EmbeddedError, prepare

TEMPLATE = '''\
"""In one terminal:  flowfabric dev {module}:app
In another:       flowfabric submit {module}:welcome '{{"name": "Ada"}}' --wait
"""

from datetime import timedelta

from flowfabric import App, Context, Fixed, Retry

app = App()


@app.task(retry=Retry(max_retries=3, backoff=Fixed(timedelta(seconds=1))))
async def welcome(ctx: Context, name: str) -> str:
    """A recorded step does not run again, whatever happens to the worker."""
    account = await ctx.step("open account", open_account, name)
    await ctx.sleep(timedelta(seconds=2))  # occupies no worker, so it could be a week
    if ctx.attempt == 1:
        raise ConnectionError("fails once; the retry skips recorded steps")
    return await ctx.step("write letter", write_letter, name, account)


async def open_account(name: str) -> int:
    return 1000 + len(name)


async def write_letter(name: str, account: int) -> str:
    return f"Welcome, {{name}}! Your account is {{account}}."


if __name__ == "__main__":  # python {file}
    print(welcome.submit_sync("Ada").result_sync())
'''


def init(
    file: Path = typer.Argument(
        Path("app.py"), help="Write this module. Missing folders are created."
    ),
) -> None:
    """Write a small first app. An existing file is not changed (exit code 4)."""
    if file.suffix != ".py" or not file.stem.isidentifier():
        raise typer.BadParameter(
            f"{printable(str(file))!r} is not the name of a module, such as app.py",
            param_hint="FILE",
        )
    module = file.stem
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as new:
            new.write(TEMPLATE.format(module=module, file=file.name))
    except FileExistsError:
        complain(f"{file} already exists and was not changed")
        typer.echo(f"  use another name: flowfabric init my_{module}.py", err=True)
        raise typer.Exit(EXIT_CONFLICT) from None
    except OSError as error:
        raise typer.BadParameter(
            f"cannot write {file}: {error.strerror}", param_hint="FILE"
        ) from error
    if Settings.from_environment().database_url is None:
        _prepare_database(file.parent)
    typer.echo(f"{file} written. Next:")
    if file.parent != Path("."):
        typer.echo(f"  cd {file.parent}")
    typer.echo(f"  flowfabric dev {module}:app")


def _prepare_database(folder: Path) -> None:
    """Create the folder `.flowfabric/`, which allows commands in `folder` to start a Postgres."""
    try:
        prepare(folder)
    except EmbeddedError as error:
        raise Unavailable(str(error)) from error
