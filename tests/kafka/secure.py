"""Apache Kafka with listeners that ask who is there: SASL, TLS, both, and TLS with the client's certificate."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from typing import TYPE_CHECKING

from tests.kafka.apache import ApacheKafka, free_ports

if TYPE_CHECKING:
    from pathlib import Path

USER = "alice"
PASSWORD = "alice-secret:1"  # noqa: S105
LISTENERS = {"SASL": "SASL_PLAINTEXT", "TLS": "SSL", "BOTH": "SASL_SSL", "MUTUAL": "SSL", "BRIEF": "SASL_PLAINTEXT"}
SESSION_MS = 3_000
"""How long a login lasts on the listener BRIEF."""
KEY_PASSWORD = "key-secret:2"  # noqa: S105

SETTINGS = """
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},{extra}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},{advertised}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,{map}
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
ssl.keystore.type=PEM
ssl.keystore.location={certificates}/broker.pem
ssl.truststore.type=PEM
ssl.truststore.location={certificates}/ca.crt
listener.name.mutual.ssl.client.auth=required
"""
LOGINS = """
listener.name.{name}.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
listener.name.{name}.scram-sha-256.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.{name}.scram-sha-512.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.{name}.oauthbearer.sasl.jaas.config=\
org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;
"""
SESSIONS = "".join(
    f"listener.name.brief.{mechanism}.connections.max.reauth.ms={SESSION_MS}\n"
    for mechanism in ("plain", "scram-sha-256", "scram-sha-512", "oauthbearer")
)


class SecureKafka(ApacheKafka):
    """An Apache Kafka that takes `USER` with `PASSWORD` by every mechanism, and unsigned tokens by OAUTHBEARER."""

    def __init__(self, certificates: Path, **settings: str) -> None:
        super().__init__(**settings)
        self.certificates = certificates
        self.ports: dict[str, int] = {}

    def server(self, listener: str, host: str = "localhost") -> str:
        """Where clients of a listener connect."""
        return f"{host}:{self.ports[listener]}"

    def more_settings(self, controller: int) -> str:
        self.ports = dict(zip(LISTENERS, free_ports(len(LISTENERS)), strict=True))
        settings = SETTINGS.format(
            port=self.port,
            controller=controller,
            extra=",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items()),
            advertised=",".join(f"{name}://localhost:{port}" for name, port in self.ports.items()),
            map=",".join(f"{name}:{protocol}" for name, protocol in LISTENERS.items()),
            certificates=self.certificates,
        )
        logins = [LOGINS.format(name=name, user=USER, password=PASSWORD) for name in ("sasl", "both", "brief")]
        return "".join([settings, *logins, SESSIONS])

    def format_arguments(self) -> list[str]:
        arguments = []
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            arguments += ["--add-scram", f"{mechanism}=[name={USER},password={PASSWORD}]"]
        return arguments


def unsigned_token(seconds: float = 600, user: str = USER) -> str:
    """A token as Kafka's own unsecured validator takes it; it ends in `seconds`."""
    now = int(time.time())
    parts = ({"alg": "none"}, {"sub": user, "iat": now - 5, "exp": now + int(seconds)})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts) + "."


def make_certificates(folder: Path) -> Path:
    """Writes a CA, a certificate for the broker (localhost and 127.0.0.1) and one for a client, all as PEM files.

    The client's key is there once more encrypted, in the way of today and in an old one.
    """
    folder.mkdir(parents=True, exist_ok=True)

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=30)

    for ca in ("ca", "other-ca"):
        openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", f"{ca}.key", "-out", f"{ca}.crt", "-days", "2", "-subj", f"/CN=headrace test {ca}"),
        )
    for name, ca, alternative, days in (
        ("broker", "ca", "DNS:localhost,IP:127.0.0.1", "2"),
        ("client", "ca", "DNS:alice", "2"),
        ("stranger", "other-ca", "DNS:localhost,IP:127.0.0.1", "2"),
        ("elsewhere", "ca", "DNS:kafka.example.org", "2"),
        ("expired", "ca", "DNS:localhost,IP:127.0.0.1", "0"),
    ):
        openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}"),
        )
        (folder / "extensions").write_text(f"subjectAltName={alternative}\n", encoding="utf-8")
        openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.crt", "-CAkey", f"{ca}.key", "-CAcreateserial"),
            *("-out", f"{name}.crt", "-days", days, "-extfile", "extensions"),
        )
        (folder / f"{name}.pem").write_bytes(
            (folder / f"{name}.key").read_bytes() + (folder / f"{name}.crt").read_bytes()
        )
    openssl(
        *("pkcs8", "-topk8", "-in", "client.key", "-v2", "aes-256-cbc", "-v2prf", "hmacWithSHA256"),
        *("-passout", f"pass:{KEY_PASSWORD}", "-out", "client.encrypted.key"),
    )
    (folder / "client.encrypted.pem").write_bytes(
        (folder / "client.crt").read_bytes() + (folder / "client.encrypted.key").read_bytes()
    )
    openssl("ec", "-in", "client.key", "-aes128", "-passout", f"pass:{KEY_PASSWORD}", "-out", "client.old.key")
    time.sleep(1.1)  # a certificate of no days has expired from the next second on
    return folder
