"""Health check: exits 0 when a URL answers with status 200 and the answer holds a text.

Usage: http_ok.py URL TEXT
"""

import sys
import urllib.request


def main() -> int:
    """Look once."""
    url, wanted = sys.argv[1:]
    try:
        with urllib.request.urlopen(url, timeout=8) as answer:
            text = answer.read().decode("utf-8", "replace")
    except OSError as error:
        sys.stderr.write(f"{url}: {error}\n")
        return 1
    if wanted in text:
        return 0
    sys.stderr.write(f"{url} answers without {wanted!r}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
