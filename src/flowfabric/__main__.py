"""`python -m flowfabric`, and the `flowfabric` command."""

from __future__ import annotations

import sys

EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command. Ctrl-C during the imports ends it without a traceback."""
    try:
        from flowfabric.cli.main import app

        app()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
