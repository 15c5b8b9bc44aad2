"""Recipe section of supervised fine-tuning."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from gagar_mcore.config.base import Section
from gagar_mcore.config.learning import Rate, Share, TrainerSection
from gagar_mcore.config.rollout import Count, Positive, Seconds


class DeepSpeedSection(Section):
    """ZeRO of one stage over `trainer.dp` ranks: 2 shares out gradients and the optimizer's state, 3 the weights too, which
    `offload_weights` then keeps on the host. `attention` is how transformers computes it. `python` is the interpreter that has
    DeepSpeed (None: this one)."""

    stage: Literal[2, 3] = 2
    offload_weights: bool = False
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    python: str | None = None


class SftSection(Section):
    """Learn from the conversations in the files `data` (JSON lines), or without them from demonstrations of the task generator:
    the cold start. The loss on the conversations in `heldout` is measured every `eval_every` steps, and after the last (0: after
    the last alone); of the first `heldout_answers` of them the last answer is then generated too, with up to `max_new_tokens`, on
    `engine.device`. What is made of the weights of a step may take `eval_timeout_s`. `megatron` trains the mixture-of-experts
    models of this package, `deepspeed` any causal language model that transformers loads.

    Learning rate: linear warm-up, flat up to `flat_share` of the steps, then cosine to 2 %. Loss weight 1 on actions of
    demonstrations and `context_weight` on everything else of them. `failing` and `sloppy` are shares of the demonstrations.
    `router_bias_update_rate` moves the experts' selection bias towards equal load."""

    backend: Literal["megatron", "deepspeed"] = "megatron"
    deepspeed: DeepSpeedSection = DeepSpeedSection()
    data: tuple[str, ...] = ()
    heldout: tuple[str, ...] = ()
    steps: Positive = 700
    sequences_per_step: Positive = 12
    checkpoint_every: Positive = 100
    eval_every: Count = 0
    eval_timeout_s: Seconds = 3600.0
    heldout_answers: Count = 0
    max_new_tokens: Positive = 512
    lr: Rate = 3e-3
    warmup_steps: Count = 60
    flat_share: Annotated[float, Field(ge=0, le=1)] = 0.4
    weight_decay: Rate = 0.05
    router_bias_update_rate: Rate = 1e-3
    context_weight: Rate = 0.2
    failing: Share = 0.2
    sloppy: Share = 0.55
    demonstration_seed: int = 501

    def contradictions(self, trainer: TrainerSection) -> Iterator[str]:
        """What `gagar sft` refuses; other commands do not read the section."""
        if self.heldout_answers and not self.heldout:
            yield "sft.heldout_answers: there are no held-out conversations; name their files in sft.heldout"
        if self.backend != "deepspeed":
            return
        if not self.data:
            yield "sft.data: required where sft.backend=deepspeed; name files of conversations, or set sft.backend=megatron"
        if self.deepspeed.offload_weights and self.deepspeed.stage != 3:
            yield "sft.deepspeed.offload_weights: needs sft.deepspeed.stage=3"
        for field in ("tp", "pp", "vpp", "cp", "ep", "etp"):
            if (size := getattr(trainer, field)) != 1:
                yield f"trainer.{field}: {size}, but DeepSpeed's ranks are data-parallel; set trainer.{field}=1, trainer.dp=RANKS"
        for field, only in (("fp8", "none"), ("quantise", "none"), ("park", False), ("mtp", "frozen"), ("routing", "free")):
            if getattr(trainer, field) != only:
                yield f"trainer.{field}: not with sft.backend=deepspeed; leave it out"
        if trainer.recompute == "selective":
            yield "trainer.recompute: selective is Megatron's; DeepSpeed's ranks take none or full"
        if trainer.optimizer.state_dtype != "fp32":
            yield "trainer.optimizer.state_dtype: fp32 alone with sft.backend=deepspeed"
