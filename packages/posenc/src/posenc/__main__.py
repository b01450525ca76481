"""``python -m posenc``."""

import sys

from posenc.command.cli import main

if __name__ == "__main__":
    sys.exit(main())
