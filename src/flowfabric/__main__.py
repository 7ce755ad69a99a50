"""`python -m flowfabric`: the same as the `flowfabric` command."""

from __future__ import annotations

from flowfabric.cli.main import main

if __name__ == "__main__":
    main()
