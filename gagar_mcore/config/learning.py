"""Recipe sections of credit, grading and stage b: method, grader, model, trainer, tracking."""

from dataclasses import replace
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from gagar_mcore.config.base import Section
from gagar_mcore.config.rollout import Count, EngineSection, Positive, Seconds
from gagar_mcore.credit import Aggregation, BehaviourParams, CreditParams
from gagar_mcore.devices import Device
from gagar_mcore.models.config import Family, ModelConfig
from gagar_mcore.models.presets import PRESETS
from gagar_mcore.ops.spec import LossName, LossSpec

Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1)]  # of a moving average
Number = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Factor = Annotated[float, Field(gt=0, le=1)]
Criterion = Annotated[int, Field(ge=1, le=5)]
REPORTED = CreditParams()
REPORTED_BEHAVIOUR = BehaviourParams()


class MethodSection(Section):
    """Credit. `gagar`: discount and rescale; `grpo`: outcome advantage alone; `downweight_only`: discount without rescaling.
    The constants are those of `CreditParams` and `BehaviourParams`, which say what each means; `behaviour_shaping` turns the
    latter on, and `behaviour_bounds` are its low and high."""

    name: Literal["gagar", "grpo", "downweight_only"] = REPORTED.method
    cap: Annotated[Number, Field(ge=1)] | None = REPORTED.cap
    min_valid: Annotated[Positive, Field(ge=2)] = REPORTED.min_valid
    weights: tuple[Share, Share, Share, Share, Share] = REPORTED.weights
    t1_min: Criterion = REPORTED.t1_min
    t3_approach: Criterion = REPORTED.t3_approach
    t3_minimality: Criterion = REPORTED.t3_minimality
    t3_side_effects: Criterion = REPORTED.t3_side_effects
    t1_top: Factor = REPORTED.t1_top
    t1_other: Factor = REPORTED.t1_other
    t2_best: Factor = REPORTED.t2_best
    t2_worst: Factor = REPORTED.t2_worst
    t3: Factor = REPORTED.t3
    length_penalty: bool = REPORTED.length_penalty
    length_pass_rate: Share = REPORTED.length_pass_rate
    length_percentile: Annotated[Number, Field(ge=0, le=100)] = REPORTED.length_percentile
    length_weight: Share = REPORTED.length_weight
    length_gamma: Annotated[Number, Field(gt=1)] = REPORTED.length_gamma
    group_size_correction: bool = REPORTED.group_size_correction
    behaviour_shaping: bool = False
    kappa: Annotated[Number, Field(ge=0)] = REPORTED_BEHAVIOUR.kappa
    behaviour_bounds: tuple[Annotated[Number, Field(gt=0)], Annotated[Number, Field(gt=0)]] = (
        REPORTED_BEHAVIOUR.low,
        REPORTED_BEHAVIOUR.high,
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.behaviour_bounds[0] > self.behaviour_bounds[1]:
            raise ValueError("behaviour_bounds: the lower bound comes first")
        for better, worse in (("t1_top", "t1_other"), ("t2_best", "t2_worst")):
            if getattr(self, better) < getattr(self, worse):
                raise ValueError(f"{better}: below {worse}, which pays worse patches more; exchange them or make them equal")
        return self

    def params(self) -> CreditParams:
        other = {"name", "behaviour_shaping", "kappa", "behaviour_bounds"}
        return CreditParams(method=self.name, **self.model_dump(exclude=other))

    def behaviour(self) -> BehaviourParams | None:
        """None where behaviour shaping is off."""
        return BehaviourParams(self.kappa, *self.behaviour_bounds) if self.behaviour_shaping else None


class AgenticSection(Section):
    """The grading model: `model` at `endpoint`, the address of an OpenAI-compatible server as far as `/chat/completions`, whose
    key is in the environment variable `key_variable`, or the file that `gagar serve grader` writes (`RUN/servers/grader.json`).
    For one group it has `max_turns` turns (of ranking, and of confirming hacks), `max_tokens` tokens, read and written over all
    requests, and `max_seconds`. `answer_tokens` bounds one answer, `request_s` one request. `checks`: how many it may run on a
    group, each for at most `check_s`; 0 is none. `confirm_hacks`: whether what rules and ranking suspect is looked into."""

    endpoint: str | None = None
    model: str | None = None
    key_variable: str = "OPENAI_API_KEY"
    max_turns: Positive = 40
    max_tokens: Positive = 2_000_000
    max_seconds: Seconds = 1200.0
    answer_tokens: Positive = 8192
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.6
    request_s: Seconds = 300.0
    checks: Count = 8
    check_s: Seconds = 300.0
    confirm_hacks: bool = True


class GradingSection(Section):
    """A verdict that has not come after `deadline_s` falls back to the outcome advantages. `gagar serve grader` serves `model`, a
    directory in Hugging Face format, by `engine`, with contexts of `max_context` tokens (None: as long as the model takes)."""

    grader: Literal["static", "agentic", "none"] = "static"
    deadline_s: Seconds = 60.0
    concurrency: Positive = 8
    agentic: AgenticSection = AgenticSection()
    model: str | None = None
    max_context: Positive | None = None
    engine: EngineSection = EngineSection(kind="sglang")

    @model_validator(mode="after")
    def _can_grade(self) -> Self:
        if self.grader == "agentic":
            for name in ("endpoint", "model"):
                if getattr(self.agentic, name) is None:
                    raise ValueError(f"agentic.{name}: required by grader=agentic; say which server and model grade")
            if self.agentic.max_seconds >= self.deadline_s:
                raise ValueError("agentic.max_seconds: must be below deadline_s, which throws the verdict away; raise deadline_s")
        return self


def _known_preset(name: str) -> str:
    if name not in PRESETS:
        raise ValueError(f"{name!r} is unknown; choose one of {', '.join(PRESETS)}")
    return name


class ModelSection(Section):
    """`init` is a directory in Hugging Face format or the name of a shipped checkpoint; `gagar sft` also takes `random`,
    a fresh model of `preset`. `gagar plan` reads the sizes of `init`, and those of `preset` where `init` is not at hand.
    `family`, where given, must be that of `init`. `window`: whether the sliding window that a configuration states counts the
    query's own key, which must be as the rollout engine has it (transformers and the embedded engine: it does)."""

    family: Family | None = None
    preset: Annotated[str, AfterValidator(_known_preset)] | None = None
    init: str
    window: Literal["including_self", "before_self"] = "including_self"

    def of(self, model: ModelConfig) -> ModelConfig:
        """`model` with its window as this section reads it. Raises ValueError where it is of another family."""
        if self.family not in (None, model.family):
            raise ValueError(f"model.family: {self.family}, but {self.init} is a {model.family} model; correct one of them")
        return replace(model, window_includes_self=self.window == "including_self")


class LossSection(Section):
    """The policy loss; `LossSpec` says what each constant means, None for bounds is the loss's own default.
    `old`: whose log-prob of a token its ratio is to. `rollout`: that recorded when it was sampled. `current`: the trainer's own
    before the step, so that with one optimizer step a batch every ratio is 1, and `tis_cap` corrects for the rollout.
    `kl_coef` weighs the divergence from the run's initial weights. `aggregation`: what each token's loss is averaged over
    first."""

    name: LossName = "mimo"
    old: Literal["rollout", "current"] = "rollout"
    positive_bounds: tuple[Number, Number] | None = None
    negative_bounds: tuple[Number, Number] | None = None
    dual_clip: Number | None = 3.0
    tis_cap: Number | None = None
    kl_coef: Rate = 0.0
    aggregation: Aggregation = "prompt-mean"

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self.spec()
        if self.name == "mimo" and self.old != "rollout":
            raise ValueError("old: mimo takes its ratio to the rollout; set old=rollout or another name")
        if self.tis_cap is not None and self.old != "current":
            raise ValueError("tis_cap: has no effect where old=rollout, whose ratio is to the rollout; set old=current or no cap")
        return self

    def spec(self) -> LossSpec:
        return LossSpec(self.name, self.positive_bounds, self.negative_bounds, self.dual_clip, self.tis_cap, self.kl_coef)


class OptimizerSection(Section):
    """Adam with decoupled weight decay; `lr` is constant after `warmup_steps`. `state_dtype` is that of its two moments."""

    lr: Rate = 3e-4
    warmup_steps: Count = 0
    beta1: Decay = 0.9
    beta2: Decay = 0.95
    eps: Annotated[Rate, Field(ge=1e-30)] = 1e-8
    weight_decay: Rate = 0.0
    clip_grad: Rate = 1.0
    state_dtype: Literal["fp32", "bf16"] = "fp32"

    @model_validator(mode="after")
    def _moments_move(self) -> Self:
        if self.state_dtype == "bf16" and max(self.beta1, self.beta2) > 0.99:
            raise ValueError("state_dtype: bf16 rounds away how a moment decays at a beta above 0.99; set fp32 or lower the beta")
        return self


class TrainerSection(Section):
    """Megatron layout and step. With `device: cuda` each rank has a GPU of its own. World size is `tp * pp * cp * dp`; the
    experts of a pipeline stage are split over `ep` of its ranks, each expert over `etp`. A stage has `vpp` chunks of the model,
    between which stages interleave (1: they do not).
    `tokens_per_microbatch` bounds one forward pass on a rank. A batch takes `minibatches` optimizer steps. `precision` is that of
    weights and activations, and `gradient_dtype` that of gradients where it is bf16; `fp8` is how Transformer Engine scales
    matrix products. `quantise`: passes compute with weights as `publish.format` of that name stores them; the weights that are
    updated keep their precision. `recompute`: what the backward pass computes again instead of keeping it: nothing, experts
    (`selective`), whole layers (`full`). `offload_optimizer` keeps the optimizer's state on the host; `park` puts weights and
    state there between steps, for an engine on the same GPU. `routing: replay` sends
    every token to the experts that it passed when it was sampled. `mtp`: whether layers of multi-token prediction train, with
    `mtp_weight` times their likelihood loss, which the policy itself does not feel. `async_checkpoint`: checkpoints are written
    while training goes on.
    A sequence of more than `max_tokens_per_sequence` tokens is an error (`overlong: refuse`) or loses those behind
    (`truncate`); None is no limit. One longer than `tokens_per_microbatch` runs alone.
    A step may take `step_timeout_s`, the wait for its batch `batch_timeout_s`."""

    device: Device = "cpu"
    tp: Positive = 2
    pp: Positive = 1
    vpp: Positive = 1
    cp: Positive = 1
    ep: Positive = 2
    etp: Positive = 1
    dp: Positive = 1
    minibatches: Positive = 1
    precision: Literal["fp32", "bf16"] = "fp32"
    gradient_dtype: Literal["fp32", "bf16"] = "fp32"
    fp8: Literal["none", "delayed", "tensorwise", "blockwise", "mxfp8"] = "none"
    quantise: Literal["none", "fp8", "mxfp4"] = "none"
    recompute: Literal["none", "selective", "full"] = "none"
    offload_optimizer: bool = False
    park: bool = False
    async_checkpoint: bool = True
    tokens_per_microbatch: Positive = 4096
    max_tokens_per_sequence: Positive | None = None
    overlong: Literal["refuse", "truncate"] = "refuse"
    threads: Positive = 1
    freeze_router: bool = True
    routing: Literal["free", "replay"] = "free"
    mtp: Literal["frozen", "train"] = "frozen"
    mtp_weight: Rate = 0.1
    loss: LossSection = LossSection()
    optimizer: OptimizerSection = OptimizerSection()
    start_timeout_s: Seconds = 180.0
    step_timeout_s: Seconds = 600.0
    batch_timeout_s: Seconds = 86400.0

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if self.precision != "bf16" and (self.fp8 != "none" or self.gradient_dtype == "bf16"):
            raise ValueError("fp8, gradient_dtype: bf16: need precision: bf16")
        if self.overlong == "truncate" and self.max_tokens_per_sequence is None:
            raise ValueError("overlong: truncate has no effect without a limit; set max_tokens_per_sequence")
        if self.mtp == "train" and self.mtp_weight == 0:
            raise ValueError("mtp_weight: 0 trains nothing; set it above 0, or mtp=frozen")
        return self

    def check_mtp(self, model: ModelConfig) -> None:
        """Raises ValueError where layers are to train that the model has not."""
        if self.mtp == "train" and model.mtp_layers == 0:
            raise ValueError("trainer.mtp: train, but the model has no layers of multi-token prediction; set trainer.mtp=frozen")

    @property
    def world_size(self) -> int:
        return self.tp * self.pp * self.cp * self.dp

    @property
    def tokens_multiple(self) -> int:
        """What the tokens of a micro-batch on a rank are a multiple of: equal shares for the tensor-parallel ranks, which matrix
        products in FP8 take in multiples of 16, in MXFP8 of 32 (Transformer Engine)."""
        return self.tp * {"none": 1, "mxfp8": 32}.get(self.fp8, 16)


class TrainSection(Section):
    """`checkpoint_every` and `eval_every` count steps (0: never but at the end); `eval_samples` sessions a held-back task."""

    steps: Positive = 30
    checkpoint_every: Positive = 5
    eval_every: Count = 0
    eval_samples: Positive = 4


class TrackingSection(Section):
    """Metrics always go to `metrics.jsonl`; Weights & Biases on top, `offline` unless told otherwise."""

    wandb: Literal["off", "offline", "online"] = "offline"
    project: str = "gagar"


class RetentionSection(Section):
    """How many of the newest weights, checkpoints and steps (batch, trajectories, workspaces) are kept, None for all; what a
    restart needs is never deleted.
    With less than `min_free_disk_mb` free the run pauses, for `disk_wait_s` at most."""

    weights: Positive | None = 3
    checkpoints: Positive | None = 2
    steps: Positive | None = None
    min_free_disk_mb: Positive = 512
    disk_wait_s: Seconds = 3600.0
