"""Points every app of the process at the database of a test, and back."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from flowfabric.app.app import App, apps
from flowfabric.config import DATABASE_URL_VARIABLES, Settings

# The first of them wins; the others may be read by other programs than ours.
_VARIABLE = DATABASE_URL_VARIABLES[0]


class Redirect:
    """While it holds, no app reaches the database it was configured for.

    Apps made during the test read the environment, so that names the test's database as well.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._before = os.environ.get(_VARIABLE)
        self._ways_back: dict[App, Callable[[], None]] = {}
        os.environ[_VARIABLE] = url
        for app in list(apps):
            self.take(app)

    def take(self, app: App) -> None:
        """Point an app at the database. One that was given another URL in the test follows too."""
        if app.settings.database_url != self._url and app not in self._ways_back:
            self._ways_back[app] = app.point_at(self._url)

    def used(self) -> list[App]:
        """The apps that have connected to the database."""
        return [app for app in apps if app.settings.database_url == self._url and app.loops]

    def release(self) -> None:
        if self._before is None:
            os.environ.pop(_VARIABLE, None)
        else:
            os.environ[_VARIABLE] = self._before
        for go_back in self._ways_back.values():
            go_back()
        for app in apps:
            if app.settings.database_url == self._url:
                # Made during the test: from now on it is as if made after it.
                app.portal.stop()
                url = Settings.from_environment().database_url
                app.settings = replace(app.settings, database_url=url)
