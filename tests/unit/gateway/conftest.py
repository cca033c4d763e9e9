from hypothesis import HealthCheck, settings

from tests.fakes.databases import own_postgres, postgres_server, sqlite, store  # noqa: F401 - fixtures
from tests.fakes.limiters import own_valkey, timed, valkey_server  # noqa: F401 - fixtures

# No deadline, no complaint about slow examples: on a busy machine a slow moment is no fault of the code.
settings.register_profile(
    "unit", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("unit")
