"""The same pool through claims. What the controller of agent-sandbox makes of them is told here as its API documents it."""

import asyncio
import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fake_api import FakeCluster
from kubernetes_asyncio.client import Configuration
from pooled import PATIENT, PODS

from gagar_sandbox import SandboxSpec
from gagar_sandbox.agent_sandbox import open_pool
from gagar_sandbox.agent_sandbox.claims import claim, template, warm_pool
from gagar_sandbox.kubernetes.shape import Shape

CRDS = Path(__file__).resolve().parents[3] / "shared" / "data" / "crds"


class Controller:
    """A pod for each claim, of its warm pool's template and called otherwise, which goes with it."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self._pods: dict[str, str] = {}
        cluster.on_change = self._react

    def _react(self, change: str, plural: str, thing: dict[str, Any]) -> None:
        if plural == "sandboxclaims":
            self._cluster.background(self._claimed(change, thing))

    async def _claimed(self, change: str, thing: dict[str, Any]) -> None:
        name = thing["metadata"]["name"]
        if change == "DELETED":
            assert thing["spec"]["lifecycle"]["shutdownPolicy"] == "Delete"
            await self._cluster.remove("pods", self._pods.pop(name))
        elif change == "ADDED":
            pool = self._cluster.objects["sandboxwarmpools", thing["spec"]["warmPoolRef"]["name"]]
            made_from = self._cluster.objects["sandboxtemplates", pool["spec"]["sandboxTemplateRef"]["name"]]
            self._pods[name] = f"warm-{len(self._pods)}-{name[-6:]}"
            metadata = {"name": self._pods[name], **copy.deepcopy(thing["spec"]["additionalPodMetadata"])}
            spec = copy.deepcopy(made_from["spec"]["podTemplate"]["spec"])
            await self._cluster.add("pods", {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def test_sandboxes_by_claims_and_nothing_left(tmp_path, image_init, base):
    async def main() -> None:
        cluster = FakeCluster(tmp_path / "pods", image_init)
        Controller(cluster)
        async with cluster.serve() as address:
            pool = await open_pool(PODS, replace(PATIENT, spare=2), Configuration(host=address))
            sandboxes = await asyncio.gather(*(pool.acquire(SandboxSpec(base)) for _ in range(3)))
            for sandbox in sandboxes:
                assert sandbox.pod.pod.startswith("warm-")
                assert (await sandbox.exec(["cat", "hello.txt"], timeout_s=60)).stdout == b"hello"
            [warm] = [thing for (plural, _), thing in cluster.objects.items() if plural == "sandboxwarmpools"]
            assert warm["spec"]["replicas"] == 2
            await sandboxes[0].close()
            again = await pool.acquire(SandboxSpec(base))
            assert again.pod is sandboxes[0].pod
            assert pool.api.counts["create"] == 5  # template, warm pool, three claims
            await pool.close()
            async with asyncio.timeout(60):
                while cluster.objects:
                    await asyncio.sleep(0.02)

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["claims", "templates", "warmpools"])
def test_objects_are_as_the_custom_resources_say(base, kind):
    if not CRDS.is_dir():
        pytest.skip(f"no schemas of custom resources at {CRDS}")
    shape = Shape.of(SandboxSpec(base), PODS.image)
    thing = {"claims": claim(PODS, shape, "a"), "templates": template(PODS, shape), "warmpools": warm_pool(PODS, shape, 2)}[kind]
    definition = json.loads((CRDS / f"extensions.agents.x-k8s.io_sandbox{kind}.json").read_text())
    [version] = [v for v in definition["spec"]["versions"] if thing["apiVersion"].endswith("/" + v["name"])]
    jsonschema.Draft202012Validator(closed(version["schema"]["openAPIV3Schema"])).validate(thing)
    assert definition["spec"]["names"]["plural"] == thing["kind"].lower() + "s"


def closed(schema: Any) -> Any:
    """The schema with unknown fields refused, which servers drop without a word."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    result = {name: closed(part) for name, part in schema.items()}
    if "properties" in schema and "additionalProperties" not in schema and schema["properties"].keys() != {"name", "namespace"}:
        result["additionalProperties"] = False
    return result
