"""Settings of all tests: property tests are not timed, and the longest tests begin first."""

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes depends on the machine, and says nothing of the code.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

LONGEST = ("test_pubsub_seeds.py", "test_deploy.py", "test_a_module_of_ones_own.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest tests first: one that begins last keeps a single worker busy for minutes."""
    items.sort(key=lambda item: item.path.name not in LONGEST)
