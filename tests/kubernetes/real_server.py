"""A real kube-apiserver and kube-scheduler 1.20 on a real etcd, on this machine's loopback alone.

Kubelets are virtual (`virtual_kubelet`), and there is no controller manager: nobody deletes the pods of lost nodes, fills in the
status of quotas, or gives tokens to service accounts; users are known by a file of tokens.
"""

import contextlib
import lzma
import shutil
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PACKED = ROOT.parent / "shared" / "bin"
UNPACKED = ROOT / "build" / "kube"
READY_S = 120.0
ADMIN, CONTROLLER = "admin-token", "controller-token"
NAMESPACE = "gagar-sandboxes"
USERS = f"""{ADMIN},admin,1,"system:masters"
{CONTROLLER},system:serviceaccount:{NAMESPACE}:gagar-controller,2,"system:serviceaccounts"
"""

GVISOR = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "gvisor"}, "handler": "runsc"}
PLACES = {
    "Namespace": "/api/v1/namespaces",
    "RuntimeClass": "/apis/node.k8s.io/v1/runtimeclasses",
    "NetworkPolicy": f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies",
    "Role": f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles",
    "RoleBinding": f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings",
    "ResourceQuota": f"/api/v1/namespaces/{NAMESPACE}/resourcequotas",
    "LimitRange": f"/api/v1/namespaces/{NAMESPACE}/limitranges",
    "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
}


class Client:
    """Bare requests as a user."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"}

    async def __call__(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> tuple[int, Any]:
        headers = self._headers | {"Content-Type": kind}
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session,
            session.request(method, self._url + path, json=body, headers=headers) as answer,
        ):
            return answer.status, await (answer.json() if answer.content_type == "application/json" else answer.text())


def programs() -> dict[str, str]:
    """The paths of what is needed; skips, saying so, where something is not there."""
    found = {name: shutil.which(name) for name in ("etcd", "openssl")}
    if missing := [name for name, path in found.items() if path is None]:
        pytest.skip(f"no {missing[0]}: install Debian's etcd-server and openssl")
    for name in ("kube-apiserver", "kube-scheduler"):
        packed = next(iter(PACKED.glob(f"{name}-*.xz")), None)
        if packed is None:
            pytest.skip(f"no {name} in {PACKED}")
        target = UNPACKED / name
        if not target.exists():
            UNPACKED.mkdir(parents=True, exist_ok=True)
            with lzma.open(packed) as source, open(f"{target}.part", "wb") as file:
                shutil.copyfileobj(source, file)
            Path(f"{target}.part").chmod(0o755)
            Path(f"{target}.part").rename(target)
        found[name] = str(target)
    return {name: str(path) for name, path in found.items()}


@dataclass
class RealServer:
    """Everything lies in `folder`. `url` is the API server's."""

    folder: Path
    programs: dict[str, str]
    url: str = ""
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @classmethod
    @contextlib.contextmanager
    def serve(cls, folder: Path) -> Iterator["RealServer"]:
        server = cls(folder, programs())
        try:
            server._prepare()
            server._start_etcd()
            server.start_api()
            server.start_scheduler()
            yield server
        finally:
            for name in ("kube-scheduler", "kube-apiserver", "etcd"):
                server.kill(name)

    def kill(self, name: str) -> None:
        if process := self._running.pop(name, None):
            process.kill()
            process.wait(READY_S)

    def start_api(self) -> None:
        """Returns once it says that it is ready."""
        key = self.folder / "accounts.key"
        self._start(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._ports['etcd']}",
            f"--cert-dir={self.folder / 'certificates'}",
            f"--secure-port={self._ports['api']}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--insecure-port=0",
            "--service-account-issuer=https://gagar.test",
            f"--service-account-signing-key-file={key}",
            f"--service-account-key-file={key}",
            f"--token-auth-file={self.folder / 'users.csv'}",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--kubelet-preferred-address-types=InternalIP",
        )
        self._until(f"{self.url}/readyz", "kube-apiserver")

    def start_scheduler(self) -> None:
        self._start(
            "kube-scheduler",
            f"--kubeconfig={self.folder / 'admin.kubeconfig'}",
            "--port=0",
            "--secure-port=0",
            "--leader-elect-lease-duration=3s",
            "--leader-elect-renew-deadline=2s",
            "--leader-elect-retry-period=1s",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
        )

    async def apply(self, folder: Path) -> None:
        """What a kustomization without patches names, and the runtime class that pods ask for."""
        admin = Client(self.url, ADMIN)
        named = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
        for thing in (*(yaml.safe_load((folder / name).read_text()) for name in named), GVISOR):
            status, told = await admin("POST", PLACES[thing["kind"]], thing)
            assert status == 201, told

    def kubeconfig(self, token: str) -> str:
        return f"""apiVersion: v1
kind: Config
current-context: test
clusters: [{{name: test, cluster: {{server: "{self.url}", insecure-skip-tls-verify: true}}}}]
users: [{{name: test, user: {{token: {token}}}}}]
contexts: [{{name: test, context: {{cluster: test, user: test}}}}]
"""

    def _prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._ports = {name: _free_port() for name in ("etcd", "peer", "api")}
        self.url = f"https://127.0.0.1:{self._ports['api']}"
        (self.folder / "users.csv").write_text(USERS)
        (self.folder / "admin.kubeconfig").write_text(self.kubeconfig(ADMIN))
        words = [self.programs["openssl"], "genrsa", "-out", str(self.folder / "accounts.key"), "2048"]
        subprocess.run(words, check=True, capture_output=True, timeout=READY_S)

    def _start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{self._ports[name]}" for name in ("etcd", "peer"))
        self._start(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )
        self._until(f"{client}/health", "etcd")

    def _start(self, name: str, *words: str) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self._running[name] = subprocess.Popen(
                [self.programs[name], *words], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def _until(self, url: str, name: str) -> None:
        trusting = ssl._create_unverified_context()
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {ADMIN}"})
        end = time.monotonic() + READY_S
        while time.monotonic() < end:
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(request, timeout=5, context=trusting),
            ):
                return
            if self._running[name].poll() is not None:
                break
            time.sleep(0.2)
        raise RuntimeError(f"{name} is not ready: {(self.folder / f'{name}.log').read_text()[-2000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
