"""Failed authentications, by address: guessing is slowed, and whoever has a valid key notices nothing."""

import time
from ipaddress import IPv6Address, ip_address

from limits import RateLimitItemPerMinute
from slowapi import Limiter

from gateway.errors import TooManyFailedLogins
from gateway.limits import whole_seconds

# What one household or host gets of IPv6: all of it is one sender.
IPV6_PREFIX = 64
# After this many failures, of all addresses together, counting begins anew.
MOST_NOTED = 20_000


class FailedLogins:
    """At most `per_minute` failures of an address are answered for what they are."""

    def __init__(self, per_minute: int) -> None:
        # Of the library's strategies in memory, the one that forgets addresses which are quiet.
        self._limiter = Limiter(key_func=str, strategy="fixed-window")
        self._item = RateLimitItemPerMinute(per_minute)
        self._noted = 0

    def note(self, address: str) -> None:
        """Counts a failure. Raises TooManyFailedLogins for one beyond the limit."""
        self._noted += 1
        if self._noted > MOST_NOTED:  # or a sender with many networks could fill the memory
            self._limiter.reset()
            self._noted = 1
        sender, counts = _sender(address), self._limiter.limiter
        if not counts.hit(self._item, sender):
            until = counts.get_window_stats(self._item, sender).reset_time
            raise TooManyFailedLogins(
                "Too many failed logins from this address. A valid key is still taken.",
                retry_after=whole_seconds(until - time.time()),
            )


def _sender(address: str) -> str:
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        return str(found.ipv4_mapped or IPv6Address(int(found) >> IPV6_PREFIX << IPV6_PREFIX))
    return str(found)
