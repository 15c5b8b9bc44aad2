"""What a run does with sandboxes, with pods that its recipe asks for."""

import asyncio
import re

import pytest
from fake_api import FakeCluster

from gagar_mcore.config.load import load_recipe
from gagar_mcore.controller.pools import open_pools
from gagar_mcore.tasks.generate import generate_task
from gagar_mcore.tasks.load import load_task
from gagar_mcore.tasks.write import write_task
from gagar_mcore.verify.patch import BASE, extract_patch
from gagar_mcore.verify.verifier import Verifier
from gagar_sandbox import Limits, SandboxSpec, SandboxUnavailable


def recipe_of(tmp_path, address):
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}], "
        f"clusters: [{{name: a, cluster: {{server: '{address}'}}}}], users: [{{name: a, user: {{token: t}}}}]}}"
    )
    pods = {"namespace": "a", "init_image": "registry.test/init:1", "image": "registry.test/task:1", "kubeconfig": kubeconfig}
    fields = (f"sandbox.kubernetes.{name}={value}" for name, value in pods.items())
    return load_recipe("tiny", ["sandbox.backend=kubernetes", *fields])


def test_a_session_and_its_verification(tmp_path, image_init):
    task = load_task(write_task(generate_task(5, 3), tmp_path / "tasks"))

    told: list[str] = []

    async def main() -> None:
        cluster = FakeCluster(tmp_path / "pods", image_init)
        async with cluster.serve() as address:
            async with open_pools(recipe_of(tmp_path, address), locked=True, message=told.append) as pools:
                spec = SandboxSpec(task.repository, task.workdir, {BASE: task.repository}, Limits())
                sandbox = await pools.sessions.acquire(spec)
                fix = (task.directory / "solution" / "fix.patch").read_bytes()
                assert (await sandbox.exec(["git", "apply", "-"], timeout_s=30, stdin=fix)).exit_code == 0
                patch = await extract_patch(sandbox, task)
                await sandbox.close()
                result = await Verifier(pools.tests, Limits(), 30.0).verify(task, patch)
                assert (result.reward, result.infrastructure_error) == (1.0, None), result.output
                runs = {pod["metadata"]["labels"]["gagar.dev/run"] for pod in cluster.pods().values()}
                assert {run.rpartition("-")[2] for run in runs} == {"sessions", "tests"}
            assert cluster.pods() == {}
            for line, purpose in zip(told, ("tests", "sessions"), strict=True):
                assert re.fullmatch(rf"pods of tiny-.*-{purpose}: [12] started, \d+ writes, 0 requests tried again", line)

    asyncio.run(main())


def test_a_cluster_that_is_away_is_told_before_anything_begins(tmp_path):
    async def main() -> None:
        recipe = load_recipe("tiny", ["name=A Recipe!"])
        section = recipe_of(tmp_path, "http://127.0.0.1:9").sandbox.kubernetes.model_copy(update={"retry_s": 0.1})
        sandbox = recipe.sandbox.model_copy(update={"backend": "kubernetes", "kubernetes": section})
        with pytest.raises(SandboxUnavailable, match="the cluster cannot be used"):
            async with open_pools(recipe.model_copy(update={"sandbox": sandbox})):
                pass

    asyncio.run(main())
