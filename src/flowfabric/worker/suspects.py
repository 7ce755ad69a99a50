"""Suspects: executions with which two workers in a row vanished. A worker runs them one at a time
and alone, so that the one that ends its process takes no other with it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from time import monotonic
from uuid import UUID

from flowfabric.client.executions import Floor
from flowfabric.core.execution import Claimed

# How long a suspect waits here until nothing else runs, before it is put off.
QUIET_SECONDS = 30.0
# How often a worker looks whether nothing runs any more.
QUIET_LOOK_SECONDS = 0.02
# How long a worker takes no other work beside a suspect that runs.
ALONE_SECONDS = 30.0
# How long the turn of the others lasts at most: in it, what is more urgent than the suspect waits.
OTHERS_SECONDS = 2.0
# For how long a suspect is put off, and how often by one worker; then it runs beside others, so
# that it need not wait for ever for handlers that never end.
PUT_OFF = timedelta(seconds=15)
MOST_PUT_OFFS = 3


class Suspects:
    """Whose turn it is in a worker: one suspect and nothing else, or all other work.

    The two take turns, so that neither waits for ever. That of the others is as long as that of the
    suspect, but short; it is over at once if there is no other work.
    """

    def __init__(self) -> None:
        # It waits here until nothing else runs, or it runs; until then nothing is claimed.
        self.current: Claimed | None = None
        # Whether it is to be said that it runs alone.
        self.is_alone = False
        self._are_there = False
        self._last: Floor | None = None
        self._since = 0.0
        self._others_until = 0.0
        self._put_offs: dict[UUID, int] = {}

    def limit(self, limit: int) -> int:
        """How many to claim: no more than one if it would be a suspect."""
        return 1 if self._are_there and self.behind is None else limit

    @property
    def behind(self) -> Floor | None:
        """The place behind the suspects, while the others have their turn."""
        return self._last if monotonic() < self._others_until else None

    def sort(self, claimed: Sequence[Claimed]) -> tuple[list[Claimed], list[Claimed]]:
        """What was claimed: ordinary executions and suspects. Without any the turn changes."""
        found = [one for one in claimed if one.crash_count > 1]
        if found:
            last = found[-1]
            self._are_there = True
            self._last = (last.rank, last.order_at, last.execution_id)
            return [one for one in claimed if one.crash_count < 2], found
        if not claimed and self.behind is not None:
            self._others_until = 0.0
        elif self.behind is None:
            self._are_there = False
        return list(claimed), found

    def begin(self, suspect: Claimed) -> None:
        self.current = suspect
        self.is_alone = False
        self._since = monotonic()

    def end(self) -> None:
        """Its run is over, or other work may run beside it: the others have their turn."""
        self.current = None
        now = monotonic()
        self._others_until = now + min(now - self._since, OTHERS_SECONDS)

    def may_put_off(self, suspect: Claimed) -> bool:
        """Whether to let it wait once more for a time when nothing else runs."""
        count = self._put_offs.get(suspect.execution_id, 0) + 1
        if count > MOST_PUT_OFFS:
            return False
        self._put_offs[suspect.execution_id] = count
        return True

    def forget(self, suspect: Claimed) -> None:
        """It has run: what it waited for is over."""
        self._put_offs.pop(suspect.execution_id, None)
