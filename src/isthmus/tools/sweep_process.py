"""The program that computes a row of ``isthmus sweep``: a command line, in a process that ends with the sweep."""

import sys

from isthmus.system.isolated import end_with
from isthmus.tools.cli import main

if __name__ == "__main__":
    end_with(int(sys.argv.pop(1)))
    sys.exit(main())
