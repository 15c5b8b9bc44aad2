"""Whether a model fits a parallel layout, and which layers each pipeline stage has; decided before any process starts."""

from collections.abc import Iterator

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.config import ModelConfig


def check_layout(trainer: TrainerSection, model: ModelConfig) -> None:
    """Raises ValueError, one line that names the field, for a layout that Megatron cannot cut the model into, and for layers to
    train that the model has not."""
    trainer.check_mtp(model)
    for field, size, counted, of in _divisions(trainer, model):
        if counted % size:
            raise ValueError(f"trainer.{field}: {size} does not divide the {counted} {of}; choose a divisor")
    if trainer.vpp > 1 and trainer.pp == 1:
        raise ValueError(f"trainer.vpp: {trainer.vpp} chunks a stage need a pipeline; set trainer.pp above 1, or vpp to 1")
    _check_stages(trainer, model.num_layers)


def stage_layers(num_layers: int, pp: int, vpp: int = 1) -> tuple[int, ...]:
    """Layers of each part of the pipeline in the order that data passes them: `pp * vpp` numbers, part i on stage `i % pp`.

    Where the parts cannot be equal, embedding and loss count as one layer each, and the last parts take what is left over."""
    parts = pp * vpp
    if num_layers % parts == 0:
        return (num_layers // parts,) * parts
    share, left_over = divmod(num_layers + 2, parts)
    sizes = [share + (part >= parts - left_over) for part in range(parts)]
    sizes[0] -= 1
    sizes[-1] -= 1
    return tuple(sizes)


def _divisions(trainer: TrainerSection, model: ModelConfig) -> Iterator[tuple[str, int, int, str]]:
    """Field, its size, what the size must divide, and what that counts."""
    tp, ep, etp = trainer.tp, trainer.ep, trainer.etp
    yield "tp", tp, model.num_heads, "attention heads of the model"
    yield "tp", tp, model.kv_heads, "key-value heads of global layers of the model"
    yield "tp", tp, model.sliding_kv_heads, "key-value heads of sliding layers of the model"
    yield "tp", tp, model.ffn_size, "dense feed-forward rows of the model"
    yield "tp", tp, model.vocab_size, "vocabulary entries of the model"
    yield "ep", ep, model.num_experts, "experts of the model"
    yield "etp", etp, model.moe_ffn_size, "feed-forward rows of an expert"
    stage_ranks = trainer.world_size // trainer.pp
    yield "ep", ep, stage_ranks, "ranks of tp * cp * dp"
    yield "etp", etp, stage_ranks // ep, "ranks of tp * cp * dp / ep"


def _check_stages(trainer: TrainerSection, num_layers: int) -> None:
    count = trainer.pp * trainer.vpp
    if count > num_layers or min(stage_layers(num_layers, trainer.pp, trainer.vpp)) < 1:
        parts = f"{trainer.pp} stages" + (f" of {trainer.vpp} chunks" if trainer.vpp > 1 else "")
        field = "vpp" if trainer.vpp > 1 else "pp"
        raise ValueError(f"trainer.{field}: {parts} leave one without any of the {num_layers} layers; choose fewer")
