"""What a request must hold before an engine sees it."""

from collections.abc import Sequence

from gagar_mcore.engine.protocol import EngineError, GenerateRequest


def check_requests(requests: Sequence[GenerateRequest], vocab_size: int, max_context: int) -> None:
    """Of one call. Raises EngineError, naming session and field."""
    for request in requests:
        if fault := _fault(request, vocab_size, max_context):
            raise EngineError(f"session {request.session_id!r}: {fault}")
    if len({request.session_id for request in requests}) < len(requests):
        raise EngineError("session_id: two requests of one call belong to the same session")


def _fault(request: GenerateRequest, vocab_size: int, max_context: int) -> str | None:
    if not request.input_ids or min(request.input_ids) < 0 or max(request.input_ids) >= vocab_size:
        return f"input_ids: needs at least one id, each in 0..{vocab_size - 1}"
    if request.max_new_tokens < 1:
        return f"max_new_tokens: {request.max_new_tokens} is below 1"
    if len(request.input_ids) + request.max_new_tokens > max_context:
        return (
            f"input_ids: {len(request.input_ids)} tokens and max_new_tokens {request.max_new_tokens} "
            f"exceed the engine's max_context of {max_context}"
        )
    if not 0 <= request.temperature < float("inf"):
        return f"temperature: {request.temperature} is no finite number from 0 on"
    if request.seed < 0:
        return f"seed: {request.seed} is negative"
    return None
