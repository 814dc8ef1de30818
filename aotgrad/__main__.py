"""``python -m aotgrad``."""

import sys

from aotgrad.cli import main

if __name__ == "__main__":
    sys.exit(main())
