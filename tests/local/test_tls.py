"""TLS when given a certificate: agents and people talk to a controller that can prove who it is."""

import shutil
import subprocess
from pathlib import Path

import httpx
import pytest
from tests.support.up_rig import Sickbay

pytestmark = pytest.mark.slow


def test_a_job_runs_over_tls_and_plain_http_is_refused(tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed here: no certificate can be made")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    make += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(make, check=True, capture_output=True)
    rig = Sickbay(tmp_path / "state", nodes=2, trusts=cert)
    try:
        rig.up("--cert", str(cert), "--key", str(key))
        rig.ready()
        rig.ends(rig.train(20))
        plain = rig.url.replace("https://", "http://")
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{plain}/healthz", timeout=5)
    finally:
        rig.down()
