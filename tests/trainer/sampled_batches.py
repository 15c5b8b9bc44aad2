"""A batch as the embedded engine samples it, with the experts that its tokens passed."""

from pathlib import Path

import numpy as np

from gagar_mcore.agent.session import Transcript
from gagar_mcore.engine.decoder import Decoder, Stream
from gagar_mcore.engine.model import Policy
from gagar_mcore.engine.protocol import GenerateRequest
from gagar_mcore.records.batch import Batch

SESSIONS, TURNS = 8, 3
ROWS = 5  # fewer than sessions: some wait, and lose their cache


def sampled_batch(checkpoint: Path) -> Batch:
    decoder = Decoder(Policy(checkpoint, 0, rows=ROWS, max_context=256, record_experts=True))
    rng = np.random.default_rng(3)
    sessions = [Transcript() for _ in range(SESSIONS)]
    for turn in range(TURNS):
        requests = []
        for index, session in enumerate(sessions):
            session.add_context(rng.integers(5, 512, rng.integers(3, 40)).tolist())
            new = int(rng.integers(2, 20))
            requests.append(GenerateRequest(str(index), list(session.token_ids), new, 1.0, turn * SESSIONS + index, ()))
        streams = [Stream.of(request) for request in requests]
        decoder.submit(streams)
        while not all(stream.finish_reason for stream in streams):
            decoder.step()
        for session, stream in zip(sessions, streams, strict=True):
            session.add_generation(stream.generation(0))
    return as_batch(sessions)


def as_batch(sessions: list[Transcript]) -> Batch:
    mask = np.concatenate([np.asarray(s.loss_mask, np.uint8) for s in sessions])
    experts = [s.experts() for s in sessions]
    return Batch(
        tokens=np.concatenate([np.asarray(s.token_ids, np.int32) for s in sessions]),
        logprobs=np.concatenate([np.asarray(s.logprobs, np.float32) for s in sessions]),
        loss_mask=mask,
        error_mask=np.zeros_like(mask),
        cu_seqlens=np.cumsum([0, *(len(s.token_ids) for s in sessions)], dtype=np.int64),
        advantages=np.resize([0.5, -0.5], SESSIONS),
        weights=np.full(SESSIONS, 1 / mask.sum()),
        weight_version=np.where(mask, 0, -1).astype(np.int32),
        experts=np.concatenate([e for e in experts if e is not None]),
    )
