"""Points every app of the process at the database of a test, and back when the test ends."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from flowfabric.app.app import App, apps
from flowfabric.config import DATABASE_URL_VARIABLES, Settings

# The variable that overrides all others. Other programs may read the others, so they stay.
_VARIABLE = DATABASE_URL_VARIABLES[0]


class Redirect:
    """Makes all apps use the test's database instead of their own, until `release` is called.

    It also sets FLOWFABRIC_DATABASE_URL for the apps that are created during the test.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._before = os.environ.get(_VARIABLE)
        self._restore: dict[App, Callable[[], None]] = {}
        os.environ[_VARIABLE] = url
        for app in list(apps):
            self.take(app)

    def take(self, app: App) -> None:
        """Point an app at the test's database, even if the app was created with another URL."""
        if app.settings.database_url != self._url and app not in self._restore:
            self._restore[app] = app.use_database(self._url)

    def used(self) -> list[App]:
        """Return the apps that have connected to the database."""
        return [app for app in apps if app.settings.database_url == self._url and app.loops]

    def release(self) -> None:
        if self._before is None:
            os.environ.pop(_VARIABLE, None)
        else:
            os.environ[_VARIABLE] = self._before
        for restore in self._restore.values():
            restore()
        for app in apps:
            if app.settings.database_url == self._url:
                # The app was created during the test. Give it the settings from outside the test.
                app.portal.stop()
                url = Settings.from_environment().database_url
                app.settings = replace(app.settings, database_url=url)
