"""Training the layers of multi-token prediction on what the policy trains on, without touching the policy."""

from typing import Protocol

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor

from gagar_mcore.models.mtp import embed, embedding_of_first_stage
from gagar_mcore.ops.logprob import linear_logprobs
from gagar_mcore.trainer.microbatch import PackedTokens
from gagar_mcore.trainer.setup import Policy


class MtpPart(Protocol):
    @property
    def packed_tokens(self) -> PackedTokens: ...

    def token_weights(self, tokens: Tensor) -> Tensor:
        """Weights in the loss `[M]` of tokens `[M]`, as the whole sequences count them."""


def input_embedding(policy: Policy) -> Tensor | None:
    """This rank's rows of the input embedding, on the last pipeline stage, where multi-token prediction trains. A collective."""
    if not policy.mtp_weight:
        return None
    first, last = policy.chunks[0], policy.chunks[-1]
    if not (first.pre_process or last.post_process):
        return None
    own = first.embedding.word_embeddings.weight if first.pre_process else None
    return embedding_of_first_stage(own, own if own is not None else last.output_layer.weight)


def mtp_loss(policy: Policy, part: MtpPart, hidden: Tensor, embedding: Tensor | None, temperature: float) -> Tensor:
    """`mtp_weight` times the weighted negative log-likelihood of the scored tokens, mean over depths; 0 where they do not train.
    hidden: what the last stage gave for the part."""
    packed = part.packed_tokens
    if embedding is None or not packed.following:
        return hidden.new_zeros([], dtype=torch.float32)
    gpt = policy.chunks[-1]
    spread = gpt.config.sequence_parallel
    embedded = [embed(embedding, following.tokens, spread) for following in packed.following]
    losses = []
    for following, guess in zip(packed.following, gpt.mtp(hidden.detach(), embedded, packed.packed), strict=True):
        whole = gather_from_sequence_parallel_region(guess, tensor_parallel_output_grad=True) if spread else guess
        logprobs, _ = linear_logprobs(
            whole[:, 0].index_select(0, following.predicting),
            gpt.output_layer.weight.detach(),
            following.targets,
            temperature=temperature,
            group=parallel_state.get_tensor_model_parallel_group(),
            reduce_hidden_grad=not spread,
        )
        losses.append(-(part.token_weights(following.scored) * logprobs).sum())
    return policy.mtp_weight * torch.stack(losses).mean()
