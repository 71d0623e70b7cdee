"""Settings of all property tests: how long an example takes depends on the machine, and says nothing of the code."""

from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
