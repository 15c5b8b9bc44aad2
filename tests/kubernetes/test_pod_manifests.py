"""Everything that is given to a cluster, against Kubernetes' own schemas and against what schemas do not say."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from pooled import PODS

from gagar_sandbox import Limits, SandboxSpec
from gagar_sandbox.kubernetes.manifest import pod, selector
from gagar_sandbox.kubernetes.settings import PodSettings
from gagar_sandbox.kubernetes.shape import Shape

ROOT = Path(__file__).resolve().parents[2]
BASES = sorted((ROOT / "k8s").glob("*/kustomization.yaml"))
SCHEMA = "1.37"
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
QUANTITY = re.compile(r"[0-9]+(m|Ki|Mi|Gi|Ti)?")
IMAGE_BASE = SandboxSpec(None, workdir="/testbed", image="registry.test/swe:1")
POD_CASES = {
    "base and folders": (PODS, SandboxSpec(ROOT / "docs", read_only={"/tests": ROOT / "tests", "/base": ROOT / "docs"})),
    "base of the image, as root": (replace(PODS, user=0, runtime_class="kata"), IMAGE_BASE),
    "on disk": (replace(PODS, volumes="disk", read_only_root=False, runtime_class=None), IMAGE_BASE),
    "placed": (
        replace(PODS, node_selector={"pool": "sandboxes"}, tolerations=({"key": "sandbox", "operator": "Exists"},)),
        IMAGE_BASE,
    ),
    "large": (PODS, replace(IMAGE_BASE, limits=Limits(65536, 4096, 1024, 32768))),
}


@pytest.fixture(params=POD_CASES.values(), ids=POD_CASES)
def case(request: pytest.FixtureRequest) -> tuple[PodSettings, dict[str, Any]]:
    settings, spec = request.param
    shape = Shape.of(spec, settings.image)
    return settings, pod(settings, shape, f"gagar-{shape.id}-0123456789ab")


def containers(thing: dict[str, Any]) -> list[dict[str, Any]]:
    return [*thing["spec"]["initContainers"], *thing["spec"]["containers"]]


def test_pods_are_as_the_schema_has_them(case):
    _, thing = case
    kubernetes_validate.validate(thing, SCHEMA, strict=True)
    for name in (
        thing["metadata"]["name"],
        *(c["name"] for c in containers(thing)),
        *(v["name"] for v in thing["spec"]["volumes"]),
    ):
        assert NAME.fullmatch(name)
    for key, value in thing["metadata"]["labels"].items():
        assert re.fullmatch(r"([a-z0-9.]+/)?[a-z]([-a-z.]*[a-z])?", key) and re.fullmatch(
            r"[a-zA-Z0-9]([-_.a-zA-Z0-9]{0,61}[a-zA-Z0-9])?", value
        )


def test_pods_refer_to_what_there_is(case):
    _, thing = case
    volumes = {volume["name"] for volume in thing["spec"]["volumes"]}
    for container in containers(thing):
        mounts = container["volumeMounts"]
        assert {mount["name"] for mount in mounts} <= volumes
        assert len({mount["mountPath"] for mount in mounts}) == len(mounts)
        assert all(mount["mountPath"].startswith("/") and ".." not in mount.get("subPath", "") for mount in mounts)
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert all(QUANTITY.fullmatch(quantity) for quantity in container["resources"]["limits"].values())
    assert all(QUANTITY.fullmatch(volume["emptyDir"]["sizeLimit"]) for volume in thing["spec"]["volumes"])


def test_pods_hold_no_rights_and_no_secrets(case):
    settings, thing = case
    spec = thing["spec"]
    assert spec["automountServiceAccountToken"] is False and spec["enableServiceLinks"] is False
    assert (spec["restartPolicy"], spec["terminationGracePeriodSeconds"]) == ("Never", 0)
    assert spec["activeDeadlineSeconds"] == settings.lifetime_s
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["securityContext"]["runAsNonRoot"] is (settings.user != 0)
    assert spec.get("runtimeClassName") == settings.runtime_class
    assert (
        not {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "serviceAccountName", "imagePullSecrets"} & spec.keys()
    )
    assert all(volume.keys() == {"name", "emptyDir"} for volume in spec["volumes"])
    for container in containers(thing):
        context = container["securityContext"]
        assert (context["allowPrivilegeEscalation"], context["privileged"], context["capabilities"]) == (
            False,
            False,
            {"drop": ["ALL"]},
        )
        assert "envFrom" not in container and all("valueFrom" not in variable for variable in container.get("env", []))


def test_commands_reach_no_volume_of_the_keeper_but_what_is_theirs(case):
    settings, thing = case
    [main] = [container for container in containers(thing) if container["name"] == "main"]
    writable = {(mount["name"], mount.get("subPath")) for mount in main["volumeMounts"] if not mount.get("readOnly")}
    assert {name for name, _ in writable} == {"scratch"} and None not in {path for _, path in writable}
    assert main["securityContext"]["readOnlyRootFilesystem"] is settings.read_only_root


def test_what_a_pool_selects_is_its_own_run():
    shape = Shape.of(IMAGE_BASE, "")
    wanted = dict(part.split("=") for part in selector(PODS).split(","))
    assert wanted.items() <= pod(PODS, shape, "a")["metadata"]["labels"].items()
    other = pod(replace(PODS, run="run-2"), shape, "a")["metadata"]["labels"]
    assert not wanted.items() <= other.items()


def manifests(base: Path) -> Iterator[dict[str, Any]]:
    """Those that a kustomization names, before they are patched."""
    for name in yaml.safe_load(base.read_text())["resources"]:
        path = (base.parent / name).resolve()
        yield from manifests(path / "kustomization.yaml") if path.is_dir() else yaml.safe_load_all(path.read_text())


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.parent.name)
def test_manifests_are_as_the_schema_has_them_and_refer_to_each_other(base):
    told = yaml.safe_load(base.read_text())
    patches = [yaml.safe_load((base.parent / patch["path"]).read_text()) for patch in told.get("patches", [])]
    things = [*manifests(base), *patches]
    names = {(thing["kind"], thing["metadata"]["name"]) for thing in things}
    for thing in things:
        kubernetes_validate.validate(thing, SCHEMA, strict=True)
        assert NAME.fullmatch(thing["metadata"]["name"])
        assert thing["kind"] == "Namespace" or ("Namespace", thing["metadata"]["namespace"]) in names
    assert all(
        (patch["kind"], patch["metadata"]["name"]) in {(t["kind"], t["metadata"]["name"]) for t in manifests(base)}
        for patch in patches
    )
    [binding] = [thing for thing in things if thing["kind"] == "RoleBinding"]
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in names
    assert all((subject["kind"], subject["name"]) in names for subject in binding["subjects"])
    named = {path.name for path in base.parent.glob("*.yaml")} - {"kustomization.yaml"}
    assert named == {Path(name).name for name in told["resources"] if name.endswith(".yaml")} | {
        p["path"] for p in told.get("patches", [])
    }


def test_the_namespace_denies_what_pods_do_not_need():
    things = {thing["kind"]: thing for thing in manifests(ROOT / "k8s" / "sandboxes" / "kustomization.yaml")}
    policy = things["NetworkPolicy"]["spec"]
    assert (policy["podSelector"], sorted(policy["policyTypes"])) == ({}, ["Egress", "Ingress"])
    assert "ingress" not in policy and "egress" not in policy
    assert things["Namespace"]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert all(QUANTITY.fullmatch(quantity) for quantity in things["ResourceQuota"]["spec"]["hard"].values())
