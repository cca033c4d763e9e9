"""The plan of every gateway that a test starts, unless the test says otherwise."""

from typing import Any

# Wide enough that a test which is not about plans never meets one.
STANDARD: dict[str, Any] = {
    "limits": {"requests_per_minute": 60},
    "output": {"cap": 4096, "default": 1024, "over_cap": "clamp"},
    "unknown_fields": "pass",
}
