"""Sandboxes in pods of the fake cluster: what every backend offers."""

from gagar_sandbox import SandboxSpec


def test_runs_in_the_workdir(use, base):
    async def body(pool, cluster) -> None:
        sandbox = await pool.acquire(SandboxSpec(base))
        result = await sandbox.exec(["sh", "-c", "pwd; cat hello.txt; ./link; echo changed > hello.txt; exit 3"], timeout_s=30)
        assert (result.outcome, result.exit_code, result.stdout) == ("exited", 3, b"/app\nhelloran\n")
        assert await sandbox.read("hello.txt") == b"changed\n"
        await sandbox.close()

    use(body)
    assert (base / "hello.txt").read_text() == "hello"
