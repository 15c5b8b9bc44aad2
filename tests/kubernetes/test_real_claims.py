"""Objects of agent-sandbox on a real API server, which validates and prunes them, with the rights of their account."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from pooled import PODS
from real_server import ADMIN, CONTROLLER, NAMESPACE, ROOT, Client, RealServer

from gagar_sandbox import SandboxSpec
from gagar_sandbox.agent_sandbox.claims import Claims
from gagar_sandbox.kubernetes import configuration
from gagar_sandbox.kubernetes.api import Api
from gagar_sandbox.kubernetes.errors import ApiError
from gagar_sandbox.kubernetes.shape import Shape

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300)]
CRDS = ROOT.parent / "shared" / "data" / "crds"
GROUP = "/apis/extensions.agents.x-k8s.io/v1beta1"
KINDS = ("sandboxclaims", "sandboxwarmpools", "sandboxtemplates")
TOO_NEW = {"x-kubernetes-validations", "x-kubernetes-list-type", "x-kubernetes-list-map-keys"}


def without_what_is_too_new(schema: Any) -> Any:
    """A definition as 1.20 takes it."""
    if isinstance(schema, list):
        return [without_what_is_too_new(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: part for name, part in schema.items() if name not in TOO_NEW and (name, part) != ("default", "")}
    return {name: without_what_is_too_new(part) for name, part in kept.items()}


async def define(admin: Client) -> None:
    for path in sorted(CRDS.glob("extensions.agents.*.json")):
        definition = without_what_is_too_new(json.loads(path.read_text()))
        definition.pop("status", None)
        status, told = await admin("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        assert status == 201, told
    async with asyncio.timeout(60):
        for kind in KINDS:
            while (await admin("GET", f"{GROUP}/namespaces/{NAMESPACE}/{kind}"))[0] != 200:
                await asyncio.sleep(0.2)


def test_claims_are_taken_as_they_are_and_go_again(tmp_path: Path, base: Path) -> None:
    if not CRDS.is_dir():
        pytest.skip(f"no definitions of custom resources at {CRDS}")

    async def main(server: RealServer) -> None:
        admin = Client(server.url, ADMIN)
        await server.apply(ROOT / "k8s" / "sandboxes")
        await define(admin)
        (tmp_path / "kubeconfig").write_text(server.kubeconfig(CONTROLLER))
        api = Api(await configuration(str(tmp_path / "kubeconfig")), NAMESPACE, 5.0)
        claims = Claims(api, replace(PODS, namespace=NAMESPACE), warm=2)
        shape = Shape.of(SandboxSpec(base, read_only={"/tests": base}), PODS.image)
        with pytest.raises(ApiError, match="cannot create resource"):
            await claims.create(shape, "one")
        role = yaml.safe_load((ROOT / "k8s" / "agent-sandbox" / "role.yaml").read_text())
        place = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles/gagar-controller"
        assert (await admin("PUT", place, role))[0] == 200
        await claims.create(shape, "one")
        await claims.create(shape, "two")
        assert await claims.names() == ["one", "two"]
        _, kept = await admin("GET", f"{GROUP}/namespaces/{NAMESPACE}/sandboxclaims/one")
        assert kept["spec"]["lifecycle"] == {"shutdownPolicy": "Delete"}
        _, templates = await admin("GET", f"{GROUP}/namespaces/{NAMESPACE}/sandboxtemplates")
        assert templates["items"][0]["spec"]["networkPolicy"] == {"ingress": [], "egress": []}
        await claims.delete("one")
        await claims.delete("two")
        await claims.clear()
        for kind in KINDS:
            assert (await admin("GET", f"{GROUP}/namespaces/{NAMESPACE}/{kind}"))[1]["items"] == []
        await api.close()

    with RealServer.serve(tmp_path / "server") as server:
        asyncio.run(main(server))
