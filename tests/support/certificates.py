"""A certificate authority of a test, with certificates for a server on this machine and for a client."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Authority", "Certificate"]


@dataclass(frozen=True)
class Certificate:
    """PEM files. ``both`` holds the key and the certificate."""

    key: Path
    certificate: Path
    both: Path


class Authority:
    """Makes certificates in a folder, with the command ``openssl``."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.ca, self._key = folder / "ca.pem", folder / "ca.key"
        self._run(
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"),
            *("-keyout", str(self._key), "-out", str(self.ca)),
        )

    def issue(self, name: str, password: str = "") -> Certificate:
        """A certificate for 127.0.0.1 and localhost; ``password`` encrypts its key, but not in ``both``."""
        at = {end: self._folder / f"{name}.{end}" for end in ("key", "csr", "crt", "pem", "ext")}
        at["ext"].write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        subject = ("-subj", f"/CN={name}")
        self._run("req", "-newkey", "rsa:2048", "-nodes", *subject, "-keyout", str(at["key"]), "-out", str(at["csr"]))
        self._run(
            *("x509", "-req", "-days", "2", "-in", str(at["csr"]), "-CA", str(self.ca), "-CAkey", str(self._key)),
            *("-CAcreateserial", "-extfile", str(at["ext"]), "-out", str(at["crt"])),
        )
        at["pem"].write_text(at["key"].read_text() + at["crt"].read_text())
        if password:
            locked = self._folder / f"{name}.locked"
            encrypt = ("-aes256", "-passout", f"pass:{password}")
            self._run("pkey", "-in", str(at["key"]), *encrypt, "-out", str(locked))
            locked.replace(at["key"])
        return Certificate(at["key"], at["crt"], at["pem"])

    @staticmethod
    def _run(*words: str) -> None:
        subprocess.run(["openssl", *words], check=True, capture_output=True)
