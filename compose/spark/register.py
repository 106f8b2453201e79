"""Makes or updates connectors in Kafka Connect and waits until all their tasks run.

Usage: register.py http://connect:8083 FOLDER. Every FOLDER/NAME.json is the configuration of the connector NAME; what
the file named by the environment variable CONVERTERS holds is added to each. Exit code 1 when a task fails or when
they do not all run within three minutes, with the worker's own reason.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

PATIENCE = 180.0
"""Seconds."""


def ask(method: str, url: str, body: dict[str, str] | None = None) -> Any:
    """One request of Connect's REST interface. Raises urllib.error.HTTPError, URLError."""
    request = urllib.request.Request(
        url,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def put(connect: str, name: str, config: dict[str, str], until: float) -> None:
    """Create or change a connector; again while the worker rebalances (409) or is not there yet."""
    while True:
        try:
            ask("PUT", f"{connect}/connectors/{name}/config", config)
            return
        except urllib.error.HTTPError as error:
            said = error.read().decode("utf-8", "replace")
            if not (error.code in (409, 503) or "timed out" in said) or time.monotonic() > until:
                sys.exit(f"{name} was refused: {said}")
        except OSError as error:
            if time.monotonic() > until:
                sys.exit(f"{connect} does not answer: {error}")
        time.sleep(1)


def wait(connect: str, name: str, until: float) -> None:
    """Until the connector and all its tasks run."""
    states: list[str] = []
    while time.monotonic() < until:
        try:
            seen = ask("GET", f"{connect}/connectors/{name}/status")
        except urllib.error.HTTPError as error:
            if error.code not in (404, 409):
                raise
            seen = {"connector": {"state": "NOT THERE YET"}, "tasks": []}
        parts = [seen["connector"], *seen["tasks"]]
        states = [part["state"] for part in parts]
        if failed := [part for part in parts if part["state"] == "FAILED"]:
            sys.exit(f"{name} failed: {failed[0].get('trace', 'no reason given')}")
        if seen["tasks"] and set(states) == {"RUNNING"}:
            sys.stdout.write(f"{name} runs\n")
            return
        time.sleep(1)
    sys.exit(f"{name} does not run after {PATIENCE:.0f} seconds: {states}")


def main() -> None:
    """All connectors, then their states."""
    connect, folder = sys.argv[1].rstrip("/"), Path(sys.argv[2])
    more = json.loads(Path(os.environ["CONVERTERS"]).read_text()) if "CONVERTERS" in os.environ else {}
    until = time.monotonic() + PATIENCE
    files = sorted(folder.glob("*.json"))
    if not files:
        sys.exit(f"{folder} holds no connector: NAME.json is missing")
    for file in files:
        put(connect, file.stem, {**json.loads(file.read_text()), **more}, until)
    for file in files:
        wait(connect, file.stem, until)


if __name__ == "__main__":
    main()
