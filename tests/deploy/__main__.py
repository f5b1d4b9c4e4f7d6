"""``deploy/smoke``: the processes of the Compose file, without containers, and the first things that anybody does."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.deploy.compose_site import compose_site
from tests.deploy.smoke import smoke


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="sparkport-site-") as folder, compose_site(Path(folder)) as site:
        print(f"ready at {site.location}, {site.http}")
        smoke(site)
    print("all is well")
    return 0


if __name__ == "__main__":
    sys.exit(main())
