"""``python -m headrace.cli``."""

import sys

from headrace.cli import main

sys.exit(main())
