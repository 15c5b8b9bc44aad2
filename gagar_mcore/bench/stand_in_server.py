"""A stand-in for SGLang's server, which no machine of a benchmark could run for a thousand sessions: it waits, and answers in the
server's format. And the engine that speaks to it with the client of the SGLang engine."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from gagar_mcore.engine.http import Endpoint, HttpClient
from gagar_mcore.engine.protocol import GenerateRequest, Generation
from gagar_mcore.engine.sglang_wire import generate_body, read_generation
from gagar_mcore.models.presets import preset
from gagar_mcore.plan.latency import Latency

MODULE = "gagar_mcore.bench.stand_in_server"
START_S, CALL_S = 30.0, 600.0
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"


@dataclass(slots=True)
class SocketEngine:
    """An Engine of one server, without its supervision."""

    client: HttpClient
    calls: int = 0

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Generation]:
        return [await self._generate(request) for request in requests]

    async def _generate(self, request: GenerateRequest) -> Generation:
        self.calls += 1
        body = generate_body(request, f"{request.session_id}/{self.calls}", None, None)
        answer = await self.client.call("/generate", CALL_S, body)
        return read_generation(answer["meta_info"], request, None, preset("tiny"))

    async def end_session(self, session_id: str) -> None: ...
    async def load_weights(self, directory: Path, version: int) -> None: ...
    async def release_memory(self) -> None: ...
    async def close(self) -> None: ...


@asynccontextmanager
async def stand_in_engine(turn: Latency, answer: list[int]) -> AsyncIterator[SocketEngine]:
    setting = json.dumps({"turn": asdict(turn), "answer": answer})
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", MODULE, setting, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert server.stdout is not None
    try:
        port = int(await asyncio.wait_for(server.stdout.readline(), START_S))
        client = HttpClient(Endpoint(f"http://127.0.0.1:{port}", "key", "key"))
        try:
            yield SocketEngine(client)
        finally:
            await client.close()
    finally:
        server.kill()
        await server.wait()


async def serve(turn: Latency, answer: list[int]) -> None:
    """Until standard input ends."""
    meta = {
        "output_token_logprobs": [[-0.5, token, None] for token in answer],
        "weight_versions": [{"version": "0", "start": 0, "end": len(answer)}],
        "finish_reason": {"type": "stop"},
    }
    body = json.dumps({"text": "", "meta_info": meta}).encode()
    rng = Random(2)

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                [length] = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                await reader.readexactly(int(length.split(b":")[1]))
                await asyncio.sleep(turn.draw(rng))
                writer.write(HEAD % (len(body), body))
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(converse, "127.0.0.1", 0, limit=1 << 24, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


def main() -> None:
    setting = json.loads(sys.argv[1])
    asyncio.run(serve(Latency(**setting["turn"]), setting["answer"]))


if __name__ == "__main__":
    main()
