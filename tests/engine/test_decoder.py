import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers import MiMoV2FlashForCausalLM

from gagar_mcore.engine.decoder import ADMIT_EVERY, PREFILL_TOKENS, Decoder, Stream
from gagar_mcore.engine.model import Policy
from gagar_mcore.engine.protocol import EngineError, GenerateRequest
from gagar_mcore.engine.sampling import uniforms

VOCAB = 512
STOP = 3


@pytest.fixture(scope="module")
def policy(checkpoint):
    return Policy(checkpoint, version=4, rows=6, max_context=400)


@pytest.fixture(scope="module")
def reference(checkpoint):
    """transformers' own forward pass: no cache, its own masks, eager attention and experts."""
    model = MiMoV2FlashForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    )
    return model.eval()


def request(session, ids, seed=0, new=12, temperature=1.0, stops=(STOP,)):
    return GenerateRequest(session, list(ids), new, temperature, seed, stops)


def random_ids(rng, count):
    return [rng.randrange(5, VOCAB) for _ in range(count)]


def run(decoder, *requests):
    streams = [Stream.of(r) for r in requests]
    decoder.submit(streams)
    while not all(s.finish_reason for s in streams):
        decoder.step()
    return streams


@torch.inference_mode()
def reference_logprobs(reference, stream):
    """Log-probs of the stream's new tokens in one full forward pass over its whole sequence."""
    context, new = stream.request.input_ids, stream.token_ids
    logits = reference(torch.tensor([[*context, *new]])).logits[0, len(context) - 1 : -1]
    logprobs = torch.log_softmax(logits.double() / stream.request.temperature, dim=-1)
    return logprobs[torch.arange(len(new)), torch.tensor(new)].tolist()


def converse(decoder, sessions, turns, seed=0):
    """Sessions of unequal lengths that begin at different steps and take `turns` turns each; returns all their streams."""
    rng = random.Random(seed)
    pending = {i * 3: request(f"s{i}", random_ids(rng, rng.randrange(1, 90)), seed=i) for i in range(sessions)}
    running, done, step = [], [], 0
    while pending or running:
        if step in pending:
            running.append((turns - 1, Stream.of(pending.pop(step))))
            decoder.submit([running[-1][1]])
        decoder.step()
        for left, stream in [entry for entry in running if entry[1].finish_reason]:
            running.remove((left, stream))
            done.append(stream)
            if left:
                ids = [*stream.request.input_ids, *stream.token_ids, *random_ids(rng, rng.randrange(1, 40))]
                running.append(
                    (left - 1, Stream.of(request(stream.request.session_id, ids, seed=left, new=rng.randrange(1, 30))))
                )
                decoder.submit([running[-1][1]])
        step += 1
    return done


@pytest.mark.parametrize("sessions", [6, 10])
def test_logprobs_over_turns_equal_a_full_forward_pass(policy, reference, sessions):
    """Ten sessions on six rows: they wait, and rows are taken from idle sessions, which prefill anew."""
    streams = converse(Decoder(policy), sessions, turns=4)
    assert len(streams) == 4 * sessions
    assert max(len(s.request.input_ids) for s in streams) > 4 * policy.architecture.sliding_window
    for stream in streams:
        assert stream.logprobs == pytest.approx(reference_logprobs(reference, stream), abs=1e-5)


def test_a_kept_cache_is_continued_and_a_changed_history_is_not(policy, reference):
    decoder, fed = Decoder(policy), []
    forward = policy.forward
    policy.forward = lambda chunk: (fed.append(chunk.lengths.tolist()), forward(chunk))[1]
    try:
        [first] = run(decoder, request("a", range(5, 65), new=5, stops=()))
        ids = [*first.request.input_ids, *first.token_ids, 9, 9]
        run(decoder, request("a", ids, new=1))
        [changed] = run(decoder, request("a", [77, *ids[1:]], new=3, stops=()))
        [repeated] = run(decoder, request("a", [77, *ids[1:]], new=3, stops=()))
    finally:
        del policy.forward
    assert fed[0] == [60] and fed[5] == [3] and fed[6] == [67]  # 3: the last token drawn and the two new ones
    assert changed.logprobs == pytest.approx(reference_logprobs(reference, changed), abs=1e-5)
    assert repeated.token_ids == changed.token_ids


def test_the_same_seed_draws_the_same_tokens_alone_and_in_a_crowd(policy):
    ids = random_ids(random.Random(1), 50)
    [alone] = run(Decoder(policy), request("a", ids, seed=5, new=20))
    crowd = run(
        Decoder(policy), *(request(f"s{i}", ids[i:], seed=i, new=20) for i in range(4)), request("a", ids, seed=5, new=20)
    )
    assert crowd[-1].token_ids == alone.token_ids
    assert crowd[-1].logprobs == pytest.approx(alone.logprobs, abs=1e-5)
    [other] = run(Decoder(policy), request("a", ids, seed=6, new=20))
    assert other.token_ids != alone.token_ids


@torch.inference_mode()
def test_token_k_inverts_the_reference_distribution_at_draw_k(policy, reference):
    [stream] = run(Decoder(policy), request("a", range(5, 50), seed=11, new=20, stops=()))
    logits = reference(torch.tensor([[*stream.request.input_ids, *stream.token_ids]])).logits[0, 44:-1]
    cumulative = torch.softmax(logits.double(), dim=-1).cumsum(dim=-1)
    draws = torch.from_numpy(uniforms(11, 20))[:, None]
    assert stream.token_ids == torch.searchsorted(cumulative, draws, right=True)[:, 0].tolist()


def test_temperature_is_part_of_the_logprobs(policy, reference):
    [stream] = run(Decoder(policy), request("a", range(5, 50), temperature=2.5, stops=()))
    assert stream.logprobs == pytest.approx(reference_logprobs(reference, stream), abs=1e-5)


@torch.inference_mode()
def test_greedy_follows_the_largest_logit(policy, reference):
    [stream] = run(Decoder(policy), request("a", range(5, 50), temperature=0.0, stops=()))
    logits = reference(torch.tensor([[*stream.request.input_ids, *stream.token_ids]])).logits[0, 44:-1]
    assert stream.token_ids == logits.argmax(dim=-1).tolist()


def test_a_stop_token_is_kept_and_ends_the_answer(policy):
    [free] = run(Decoder(policy), request("a", range(5, 50), stops=()))
    assert (free.finish_reason, len(free.token_ids)) == ("length", 12)
    [stopped] = run(Decoder(policy), request("a", range(5, 50), stops=(free.token_ids[4],)))
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(free.token_ids[4]) + 1]


def test_the_last_token_of_the_budget_may_be_the_stop_token(policy):
    [free] = run(Decoder(policy), request("a", range(5, 50), new=1, stops=()))
    [stopped] = run(Decoder(policy), request("a", range(5, 50), new=1, stops=(free.token_ids[0],)))
    assert (free.finish_reason, stopped.finish_reason) == ("length", "stop")


def test_the_context_may_be_filled_to_its_last_token(policy, reference):
    [stream] = run(Decoder(policy), request("a", random_ids(random.Random(2), 395), new=5, stops=()))
    assert stream.logprobs == pytest.approx(reference_logprobs(reference, stream), abs=1e-5)


def test_long_prompts_are_prefilled_in_several_batches(policy, reference):
    rng = random.Random(3)
    streams = run(Decoder(policy), *(request(f"s{i}", random_ids(rng, 340 + i), new=3) for i in range(6)))
    assert sum(len(s.request.input_ids) for s in streams) > PREFILL_TOKENS
    for stream in streams:
        assert stream.logprobs == pytest.approx(reference_logprobs(reference, stream), abs=1e-5)


def test_newcomers_join_while_others_run(policy):
    decoder = Decoder(policy)
    first, second = Stream.of(request("a", [5] * 20, new=30, stops=())), Stream.of(request("b", [6] * 9, new=2, stops=()))
    decoder.submit([first])
    decoder.step()
    decoder.submit([second])
    for _ in range(ADMIT_EVERY + 2):
        decoder.step()
    assert second.finish_reason == "length"
    assert first.finish_reason is None


def test_an_ended_session_aborts_what_it_has_at_work(policy):
    decoder = Decoder(policy)
    running, waiting = Stream.of(request("a", [5] * 9, new=30, stops=())), Stream.of(request("b", [6] * 9, new=30, stops=()))
    decoder.submit([running])
    decoder.step()
    decoder.submit([waiting])
    decoder.end_session("a")
    decoder.end_session("b")
    assert (running.finish_reason, waiting.finish_reason) == ("abort", "abort")
    assert len(running.token_ids) == 1 and waiting.token_ids == []
    assert decoder.step() == 0
    assert [len(s.token_ids) for s in run(decoder, *(request(f"s{i}", [7], new=2, stops=()) for i in range(6)))] == [2] * 6


def test_two_requests_of_one_session_at_once_are_refused(policy):
    decoder = Decoder(policy)
    decoder.submit([Stream.of(request("a", [5]))])
    with pytest.raises(EngineError, match="session_id: 'a' already has a request at work"):
        decoder.submit([Stream.of(request("a", [5]))])


def test_an_answer_names_the_weights_it_came_from(policy):
    [stream] = run(Decoder(policy), request("a", [5], new=2, stops=()))
    [span] = stream.generation(policy.version).weight_spans
    assert (span.version, span.start, span.end) == (4, 0, 2)


def heard(reference, ids):
    """`[tokens, layers with experts, top_k]`: the choices of transformers' own routers in one full pass, in order of number."""
    chosen = []
    experts = [layer.mlp.experts for layer in reference.model.layers if hasattr(layer.mlp, "experts")]
    hooks = [module.register_forward_pre_hook(lambda _, arguments: chosen.append(arguments[1])) for module in experts]
    with torch.inference_mode():
        reference(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    return torch.stack(chosen, dim=1).sort(-1).values.numpy()


@pytest.mark.parametrize("sessions", [6, 10])
def test_recorded_experts_over_turns_are_those_of_a_full_forward_pass(checkpoint, reference, sessions):
    """With a kept cache a turn tells of the new tokens alone: those of all turns are the whole sequence but its last token."""
    streams = converse(Decoder(Policy(checkpoint, 0, rows=6, max_context=400, record_experts=True)), sessions, turns=4)
    told = {}
    for stream in streams:
        routed = stream.generation(0).routed
        ids = [*stream.request.input_ids, *stream.token_ids]
        assert routed.start + len(routed.experts) == len(ids) - 1
        assert routed.experts.dtype == np.int16
        assert (np.sort(routed.experts, -1) == heard(reference, ids)[routed.start : -1]).all()
        told.setdefault(stream.request.session_id, []).append(routed)
    for first, *later in told.values():
        assert first.start == 0
        assert all(new.start in (0, old.start + len(old.experts)) for old, new in pairwise([first, *later]))
    assert any(routed.start == 0 for _, *later in told.values() for routed in later) == (sessions > 6)


def test_nothing_is_recorded_unless_asked(policy):
    [stream] = run(Decoder(policy), request("a", [5], new=2, stops=()))
    assert policy.recorder is None and stream.generation(0).routed is None
