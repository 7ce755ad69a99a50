"""Run the `flowfabric` command, also as `python -m flowfabric`."""

from __future__ import annotations

import sys

EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command. If Ctrl-C comes during the imports, no traceback is printed."""
    try:
        from flowfabric.cli.main import app

        app()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
