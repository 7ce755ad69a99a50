"""Print a value of FLOWFABRIC_PG_BINARIES that selects another major version of Postgres.

The tests use one version by default. .ci/run also runs a sample of the tests on this other version.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from flowfabric.embedded import BinariesNotFound, MajorUnavailable, account, binaries

NO_DATA = Path("/nonexistent")


def main() -> int:
    user = account.choose(NO_DATA)
    used = binaries.find(user, data=NO_DATA, major=None)
    # First the version that a new user gets, then older versions from the same source.
    for major in (None, *reversed(binaries.SUPPORTED)):
        for choice in ("wheel", "system"):
            os.environ[binaries.VARIABLE] = choice
            try:
                found = binaries.find(user, data=NO_DATA, major=major)
            except (BinariesNotFound, MajorUnavailable):
                continue
            if found.major != used.major:
                print(choice if major is None else found.folder)
                return 0
    print(
        f"there is no Postgres other than {used.version}: make test installs one", file=sys.stderr
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
