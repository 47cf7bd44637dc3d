"""`python -m router_service.cli`, which is `switchcraft`."""

import sys

from router_service.cli import main

sys.exit(main())
