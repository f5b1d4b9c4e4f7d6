"""``python -m sparkport.cli``: the command without its installed script."""

import sys

from sparkport.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
