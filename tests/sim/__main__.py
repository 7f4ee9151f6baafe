"""See sweep.py; worker processes import what they run from there."""

import sys

from tests.sim.sweep import main

sys.exit(main())
