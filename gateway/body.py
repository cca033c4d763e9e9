"""Reading a request's body: capped on the bytes as they arrive, and bounded over all requests."""

from types import TracebackType
from typing import Self

from starlette.types import Receive

from gateway.deadlines import Deadlines
from gateway.errors import BodyTooLarge, Overloaded, RequestTimeout, UnsupportedEncoding


class ClientGone(Exception):
    """The client closed its connection; nobody is there to answer."""


class BodyBudget:
    """All request bodies that are held at one time, in bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0

    def hold(self, size: int) -> None:
        """Counts `size` more bytes. Raises Overloaded, and counts nothing, beyond the limit."""
        if self.held + size > self._limit:
            raise Overloaded(
                "Too many request bodies are being read at this moment. Try again.", retry_after=1
            )
        self.held += size

    def give_back(self, size: int) -> None:
        self.held -= size


class HeldBody:
    """A request's body, held against the budget until the `with` block ends."""

    def __init__(self, budget: BodyBudget, deadlines: Deadlines, *, max_bytes: int, timeout: float) -> None:
        self._budget = budget
        self._deadlines = deadlines
        self._max_bytes = max_bytes
        self._timeout = timeout
        self._held = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._budget.give_back(self._held)

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
            self._budget.hold(len(chunk))
            self._held += len(chunk)
            chunks.append(chunk)
            if not message.get("more_body", False):
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"The body is larger than {self._max_bytes} bytes. Send less.")
