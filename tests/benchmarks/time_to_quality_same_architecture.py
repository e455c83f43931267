"""Time to the validation loss that `Trainer` reaches in 5 minutes with our own architecture and schedule.

Only the engine differs: rows that keep documents separate and have no padding, logits at the targets only, the loop,
and the optimizer if ours is not AdamW. Theirs has exactly our model's configuration, mask rate, schedule (warm-up,
cosine, floor), betas, epsilon and decay, over grouped rows of our length, and the best learning rate of a sweep. Text,
tokenizer, validation, clocks and seeds are those of time_to_quality; `--tune` prints the sweeps.
"""

from typing import Any

from clozeline.params.pretraining import PretrainParams
from comparison.quality import Setup
from comparison.quality import main as compare


def our_schedule(params: PretrainParams) -> dict[str, Any]:
    """Return the settings of our optimizer and schedule under their names in `TrainingArguments`."""
    optimizer, schedule = params.optimizer, params.schedule
    return {
        "adam_beta1": optimizer.beta1,
        "adam_beta2": optimizer.beta2,
        "adam_epsilon": optimizer.epsilon,
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": optimizer.clip_norm,
        "warmup_steps": schedule.warmup_fraction,
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr_rate": schedule.final_fraction},
    }


SETUP = Setup(
    name="time_to_quality_same_architecture",
    configure=lambda config, num_parameters: config,
    arguments=our_schedule,
    mask_rate=lambda params: params.masking.mask_rate,
    learning_rate=1e-3,
    swept=(5e-4, 1e-3, 3e-3),
    our_learning_rate=1e-3,
    our_budgets=(0.6, 1),
)


def main() -> None:
    compare(SETUP, __doc__)
