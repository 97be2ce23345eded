"""`python -m autotune …` is `tspec autotune …`."""

import sys

from tspec.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["autotune", *sys.argv[1:]]))
