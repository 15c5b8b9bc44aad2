import asyncio

from gagar_sandbox.local import LocalSandbox


def test_output_comes_while_the_command_runs(use):
    """The command goes on only when what it said has been heard."""

    async def body(sandbox: LocalSandbox) -> None:
        heard = asyncio.Event()
        script = (
            "import sys, time\nprint('out', flush=True)\nprint('err', file=sys.stderr, flush=True)\ntime.sleep(1)\nprint('end')"
        )
        parts: list[tuple[str, bytes]] = []

        def on_output(stream: str, data: bytes) -> None:
            parts.append((stream, data))
            heard.set()

        running = asyncio.create_task(sandbox.exec(["python3", "-c", script], timeout_s=60, on_output=on_output))
        await heard.wait()
        assert not running.done()
        result = await running
        assert (result.stdout, result.stderr) == (b"out\nend\n", b"err\n")
        assert b"".join(data for stream, data in parts if stream == "stdout") == b"out\nend\n"
        assert b"".join(data for stream, data in parts if stream == "stderr") == b"err\n"

    use(body)


def test_what_is_cut_from_the_result_is_streamed_all_the_same(use):
    async def body(sandbox: LocalSandbox) -> None:
        parts: list[bytes] = []
        command = ["head", "-c", "3000000", "/dev/zero"]
        result = await sandbox.exec(command, timeout_s=60, output_limit=100, on_output=lambda _, data: parts.append(data))
        assert result.output_truncated and len(result.stdout) < 200
        assert sum(map(len, parts)) == 3000000

    use(body)


def test_a_listener_that_raises_stops_the_command(use):
    async def body(sandbox: LocalSandbox) -> None:
        def on_output(stream: str, data: bytes) -> None:
            raise RuntimeError("enough")

        try:
            await sandbox.exec(["sh", "-c", "echo x; sleep 1000"], timeout_s=60, on_output=on_output)
        except RuntimeError as error:
            assert str(error) == "enough"
        else:
            raise AssertionError("nothing was raised")
        await sandbox.reset()
        assert (await sandbox.exec(["true"], timeout_s=60)).exit_code == 0

    use(body)
