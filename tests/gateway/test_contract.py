"""The contract, over the fake engine."""

from tests.contract.developer import *  # noqa: F403 - pytest collects the classes from here
from tests.contract.dialects import *  # noqa: F403 - as above
from tests.contract.refusals import *  # noqa: F403 - as above
