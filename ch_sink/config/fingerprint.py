"""A short text that changes with a configuration."""

import hashlib
from functools import lru_cache

__all__ = ["fingerprint"]


def fingerprint(shown: str, whole: str) -> str:
    """The fingerprint of a configuration, given as JSON with its secrets masked, and with them in the clear.

    The part that depends on secrets is slow to compute on purpose: it lies in the ledger.
    """
    return f"{hashlib.sha256(shown.encode()).hexdigest()[:16]}-{_slowly(whole)}"


@lru_cache(maxsize=4096)
def _slowly(whole: str) -> str:
    return hashlib.scrypt(whole.encode(), salt=b"ch_sink", n=1 << 12, r=8, p=1, dklen=4).hex()
