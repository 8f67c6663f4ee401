"""`python -m data_prep` is `bert-prep`."""

import sys

from data_prep.cli import main

if __name__ == "__main__":
    sys.exit(main())
