"""Plans without a file."""

from typing import Any

from gateway.plans import Plans

# Wide enough that a test which is not about plans never meets one.
STANDARD: dict[str, Any] = {
    "limits": {"requests_per_minute": 60},
    "output": {"cap": 4096, "default": 1024, "over_cap": "clamp"},
    "unknown_fields": "pass",
}


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
