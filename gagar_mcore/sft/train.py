"""One rank of supervised fine-tuning: `torchrun ... -m gagar_mcore.sft.train RUN_DIR --init DIR --epoch E`."""

import argparse
import os
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import record

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.config.load import load_recipe
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.lifetime import die_with_parent
from gagar_mcore.records.epochs import Fence
from gagar_mcore.records.layout import RunLayout
from gagar_mcore.sft.data import read_sft_data
from gagar_mcore.sft.loop import Metrics, Trainee, fine_tune
from gagar_mcore.tracking.metrics import MetricsLog

DATA, HELDOUT, STEPS = "data", "heldout", "sft.jsonl"  # in the run directory


@record  # the launcher's log then ends with what went wrong
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="run directory, with its recipe and packed columns")
    parser.add_argument("--init", type=Path, required=True, help="config.json, tokenizer and, unless random, safetensors")
    parser.add_argument("--epoch", type=int, required=True, help="epoch of the process that started these ranks")
    arguments = parser.parse_args()
    die_with_parent()
    layout = RunLayout(arguments.run)
    recipe = load_recipe(str(layout.recipe))
    trainee = join(recipe, arguments.init, layout, Fence(layout, arguments.epoch))
    heldout = read_sft_data(layout.root / HELDOUT) if recipe.sft.heldout else None
    first = os.environ["RANK"] == "0"
    report = MetricsLog(layout.root / STEPS).log if first else _silent
    fine_tune(trainee, recipe.sft, read_sft_data(layout.root / DATA), heldout, layout, report)


def join(recipe: Recipe, start: Path, layout: RunLayout, fence: Fence) -> Trainee:
    """Enter the group of ranks and build the model."""
    if recipe.sft.backend == "deepspeed":
        from gagar_mcore.sft import zero_config

        zero_config.join(recipe.trainer)

        from gagar_mcore.sft.zero import ZeroTrainee

        return ZeroTrainee(recipe, start, layout, fence)

    from gagar_mcore.trainer.rank import start_rank

    trainer = sft_trainer(recipe)
    start_rank(trainer)

    from gagar_mcore.sft.megatron import MegatronTrainee

    return MegatronTrainee(recipe, trainer, start, layout, fence)


def sft_trainer(recipe: Recipe) -> TrainerSection:
    """The recipe's section with the rates of fine-tuning; the router learns."""
    optimizer = recipe.trainer.optimizer.model_copy(update={"lr": recipe.sft.lr, "weight_decay": recipe.sft.weight_decay})
    return recipe.trainer.model_copy(update={"freeze_router": False, "optimizer": optimizer})


def _silent(step: int, metrics: Metrics) -> None:
    pass


if __name__ == "__main__":
    main()
