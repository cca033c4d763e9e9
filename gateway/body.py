"""Reading a request's body: capped on the bytes as they arrive, and bounded over all requests."""

from types import TracebackType
from typing import Self

from starlette.types import Receive

from gateway.deadlines import Deadlines
from gateway.errors import BodyTooLarge, Overloaded, RequestTimeout, UnsupportedEncoding


class ClientGone(Exception):
    """The client closed its connection; nobody is there to answer."""


class BodyBudget:
    """All request bodies that are held at one time, in bytes; of one tenant's at most `share`, so that slow
    senders of one cannot keep out all others.
    """

    def __init__(self, limit: int, share: int | None = None) -> None:
        self._limit = limit
        self._share = limit if share is None else share
        self._of_tenants: dict[str, int] = {}
        self.held = 0

    def hold(self, size: int, tenant: str) -> None:
        """Counts `size` more bytes. Raises Overloaded, and counts nothing, beyond the limit or the share."""
        of_tenant = self._of_tenants.get(tenant, 0) + size
        if self.held + size > self._limit:
            raise Overloaded(
                "Too many request bodies are being read at this moment. Try again.", retry_after=1
            )
        if of_tenant > self._share:
            raise Overloaded(
                f"Your tenant's requests under way hold {self._share} bytes of bodies, its share. Try again.",
                retry_after=1,
            )
        self.held += size
        self._of_tenants[tenant] = of_tenant

    def give_back(self, size: int, tenant: str) -> None:
        self.held -= size
        left = self._of_tenants.get(tenant, 0) - size
        if left > 0:
            self._of_tenants[tenant] = left
        else:
            self._of_tenants.pop(tenant, None)


class HeldBody:
    """A request's body, held against the budget until the `with` block ends."""

    def __init__(
        self, budget: BodyBudget, deadlines: Deadlines, *, tenant: str, max_bytes: int, timeout: float
    ) -> None:
        self._budget = budget
        self._tenant = tenant
        self._deadlines = deadlines
        self._max_bytes = max_bytes
        self._timeout = timeout
        self._held = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._budget.give_back(self._held, self._tenant)

    async def read(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """All of it. Raises UnsupportedEncoding, BodyTooLarge, Overloaded, RequestTimeout or ClientGone."""
        encoding = headers.get(b"content-encoding", b"identity").strip().lower()
        if encoding not in (b"", b"identity"):
            raise UnsupportedEncoding("Send the body uncompressed: Content-Encoding is not accepted.")
        declared = headers.get(b"content-length")
        if declared is not None and int(declared) > self._max_bytes:
            raise self._too_large()
        try:
            with self._deadlines.within(self._timeout):
                return await self._collect(receive)
        except TimeoutError:
            raise RequestTimeout(f"The body did not arrive within {self._timeout:g} seconds.") from None

    async def _collect(self, receive: Receive) -> bytes:
        chunks: list[bytes] = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunk: bytes = message.get("body", b"")
            if self._held + len(chunk) > self._max_bytes:
                raise self._too_large()
            self._budget.hold(len(chunk), self._tenant)
            self._held += len(chunk)
            chunks.append(chunk)
            if not message.get("more_body", False):
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"The body is larger than {self._max_bytes} bytes. Send less.")
