"""``python -m posenc``."""

import sys

from posenc.tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
