"""One rank of supervised fine-tuning on Megatron:
`torchrun ... -m gagar_mcore.sft.train RECIPE --data DIR --init DIR --out DIR [--metrics FILE]`."""

import argparse
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import record

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.config.load import load_recipe
from gagar_mcore.config.recipe import Recipe
from gagar_mcore.lifetime import die_with_parent
from gagar_mcore.sft.data import read_sft_data


@record  # the launcher's log then ends with what went wrong
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", help="recipe with the sections sft and trainer")
    parser.add_argument("--data", type=Path, required=True, help="published directory of packed columns")
    parser.add_argument("--init", type=Path, required=True, help="config.json, tokenizer and, unless random, safetensors")
    parser.add_argument("--out", type=Path, required=True, help="directory that the trained checkpoint is published as")
    parser.add_argument("--metrics", type=Path, help="JSON lines, one a step")
    arguments = parser.parse_args()
    die_with_parent()
    recipe = load_recipe(arguments.recipe)
    trainer = sft_trainer(recipe)

    from gagar_mcore.trainer.rank import start_rank

    start_rank(trainer)

    from gagar_mcore.sft.finetune import export, fine_tune, metrics_writer

    data = read_sft_data(arguments.data)
    policy = fine_tune(recipe, trainer, data, arguments.init, metrics_writer(arguments.metrics))
    export(policy, trainer.precision, arguments.init, arguments.out)


def sft_trainer(recipe: Recipe) -> TrainerSection:
    """The recipe's section with the rates of fine-tuning; the router learns."""
    optimizer = recipe.trainer.optimizer.model_copy(update={"lr": recipe.sft.lr, "weight_decay": recipe.sft.weight_decay})
    return recipe.trainer.model_copy(update={"freeze_router": False, "optimizer": optimizer})


if __name__ == "__main__":
    main()
