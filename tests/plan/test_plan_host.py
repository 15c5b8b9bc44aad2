from dataclasses import astuple

from gagar_mcore.config.learning import TrainerSection
from gagar_mcore.models.presets import preset
from gagar_mcore.plan.host import host_on_rank, worst_host
from gagar_mcore.plan.parameters import parameters_on_rank
from gagar_mcore.plan.states import training_states

FLASH = preset("mimo-v2-flash")


def section(**changes) -> TrainerSection:
    return TrainerSection(**{"tp": 4, "ep": 16, "pp": 4, "cp": 2, "dp": 4, "precision": "bf16", **changes})


def host(**changes) -> dict[str, float]:
    found = host_on_rank(FLASH, section(**changes), stage=1)
    assert found.total == sum(astuple(found))
    return dict(zip(("optimizer", "reference", "checkpoint", "publish"), astuple(found), strict=True))


def test_what_waits_on_the_host():
    states = training_states(parameters_on_rank(FLASH, section(), 1), section())
    usual = host()
    assert (usual["optimizer"], usual["reference"]) == (0, 0)
    assert host(offload_optimizer=True) == usual | {"optimizer": states.optimizer}
    assert host(loss={"kl_coef": 0.01}) == usual | {"reference": states.weights}


def test_a_checkpoint_holds_the_state_of_all_that_trains_in_fp32_and_a_copy_of_the_weights():
    count = parameters_on_rank(FLASH, section(), 1)
    gathered = 12 * (count.model - count.router)
    assert host()["checkpoint"] == gathered + 2 * count.model
    assert (
        host(async_checkpoint=False)["checkpoint"]
        == gathered
        == host(optimizer={"state_dtype": "bf16"}, async_checkpoint=False)["checkpoint"]
    )


def test_the_largest_parameter_is_the_vocabulary():
    assert host()["publish"] == 2 * 152576 * 4096 == host(precision="fp32")["publish"] / 2


def test_the_worst_stage():
    stages = [host_on_rank(FLASH, section(), stage) for stage in range(4)]
    assert worst_host(FLASH, section()) == max(stages, key=lambda stage: stage.total) != stages[0]
