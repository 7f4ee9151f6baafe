"""Property tests in this folder have no time limit an example: machines are shared."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "crossdock", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("crossdock")
