"""``python -m isthmus`` is the command ``isthmus``."""

import sys

from isthmus.tools.cli import main

sys.exit(main())
