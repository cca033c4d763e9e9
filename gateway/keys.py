"""API keys: their text form, and what is kept of them.

`sk-gh-` + 10 base32 characters of id + `-` + 43 base64url characters of secret + 6 base64url characters of
CRC-32 over all that stands before. The checksum tells a typo from a wrong key without a look-up, and lets
secret scanners recognise keys.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

PREFIX = "sk-gh-"
_ID_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
_FORM = re.compile(r"sk-gh-(?P<id>[a-z2-7]{10})-(?P<secret>[A-Za-z0-9_-]{43})(?P<checksum>[A-Za-z0-9_-]{6})")


@dataclass(frozen=True, slots=True)
class ParsedKey:
    """A key whose form and checksum are right; whether it is valid is for the directory to say."""

    id: str
    secret: str

    def __repr__(self) -> str:
        return f"ParsedKey(id={self.id!r}, secret=…)"


def generate(key_id: str | None = None) -> str:
    """A new key with 256 random bits of secret; with `key_id`, another secret for that key."""
    if key_id is None:
        key_id = "".join(secrets.choice(_ID_ALPHABET) for _ in range(10))
    head = f"{PREFIX}{key_id}-{_base64url(secrets.token_bytes(32))}"
    return head + _checksum(head)


def parse(text: str) -> ParsedKey | None:
    """The key's parts, or None where the form or the checksum is wrong."""
    found = _FORM.fullmatch(text)
    if found is None or found["checksum"] != _checksum(text[:-6]):
        return None
    return ParsedKey(found["id"], found["secret"])


def digest(secret: str, pepper: bytes) -> bytes:
    """HMAC-SHA256 of the secret, 32 bytes: all that is stored of it."""
    return hmac.digest(pepper, secret.encode("ascii"), "sha256")


def pepper_id(pepper: bytes) -> str:
    """A name for a pepper that does not give it away, kept beside each digest so that peppers can rotate."""
    return hashlib.sha256(b"gatehouse pepper id\0" + pepper).hexdigest()[:12]


def _checksum(head: str) -> str:
    return _base64url(binascii.crc32(head.encode("ascii")).to_bytes(4, "big"))


def _base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")
