"""`python -m headrace.jobs` is the `headrace` command."""

import sys

from headrace.jobs.cli import main

if __name__ == "__main__":
    sys.exit(main())
