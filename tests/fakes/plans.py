"""Plans without a file."""

from typing import Any

from gateway.plans import Plans
from tests.fakes.standard import STANDARD


def plans(standard: dict[str, Any] | None = None, **whole: Any) -> Plans:
    """One plan, `standard`, with these parts in place of STANDARD's; `whole` are parts of the file itself."""
    return Plans.model_validate(
        {"default_plan": "standard", "plans": {"standard": STANDARD | (standard or {})}} | whole
    )


class FixedPlans:
    """PresentPlans that change when a test says so."""

    def __init__(self, present: Plans | None = None) -> None:
        self.plans = present or plans()
        self.generation = 0

    def change(self, present: Plans) -> None:
        self.plans = present
        self.generation += 1
