"""A short text that changes with a configuration."""

import hashlib
import json
from functools import lru_cache
from typing import Any

__all__ = ["fingerprint"]


def fingerprint(shown: str, whole: str) -> str:
    """The fingerprint of a configuration, given as JSON with its secrets masked, and with them in the clear.

    The part that depends on secrets is slow to compute on purpose: it lies in the ledger. Streams with the same secrets
    share it.
    """
    secrets = json.dumps(_differing(json.loads(shown), json.loads(whole)), sort_keys=True)
    return f"{hashlib.sha256(shown.encode()).hexdigest()[:16]}-{_slowly(secrets)}"


def _differing(shown: Any, whole: Any) -> Any:
    """What of ``whole`` the other one masks; None where they are the same."""
    if isinstance(shown, dict) and isinstance(whole, dict) and shown.keys() == whole.keys():
        found = {key: _differing(shown[key], value) for key, value in whole.items()}
        return {key: value for key, value in found.items() if value is not None} or None
    return None if shown == whole else whole


@lru_cache(maxsize=256)
def _slowly(secrets: str) -> str:
    return hashlib.scrypt(secrets.encode(), salt=b"ch_sink", n=1 << 12, r=8, p=1, dklen=4).hex()
