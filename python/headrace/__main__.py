"""``python -m headrace``: the command ``headrace``."""

import sys

from headrace.cli import main

sys.exit(main())
