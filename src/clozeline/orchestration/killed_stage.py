"""A stage that was killed without a word of its own, as the kernel does where memory runs out, and what to try then."""

import signal
from collections.abc import Mapping
from typing import Final

from clozeline.errors import ClozelineError
from clozeline.machine.main_memory import available_bytes

_EXIT_CODES: Final = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""As a process that waited says it, and as a shell does."""
_GIB: Final = 2**30
_ANEW: Final = "With other settings a training begins anew, with the same ones it goes on from its last checkpoint"
_SETTINGS: Final[Mapping[str, str]] = {
    "pretrain": "set `pretrain.micro_batch_tokens` lower than the tokens of a batch (the step stays the same) or"
    f" `pretrain.gradient_checkpointing: true`; `clozeline plan` says what a step needs. {_ANEW}",
    "evaluate": "lower `evaluate.batch_tokens`",
    "finetune": "set `finetune.{task}.micro_batch_tokens` lower than the tokens of a batch (the step stays the same) or"
    f" lower `finetune.{{task}}.max_length`. {_ANEW}",
}
"""Keyed by stage: what there is in params.yaml for it to need less."""
_MORE_MEMORY: Final = "give it more memory, or end what runs beside it, and run again"


def is_killed(exit_code: int) -> bool:
    return exit_code in _EXIT_CODES


def failure_of_killed(name: str, exit_code: int, log: str) -> ClozelineError:
    """`name`: of the stage, with its task. `log`: where all is that it wrote."""
    stage, _, task = name.partition("@")
    setting = _SETTINGS.get(stage)
    advice = _MORE_MEMORY if setting is None else f"{_MORE_MEMORY}; or {setting.format(task=task)}"
    return ClozelineError(
        f"stage `{name}` was killed (signal 9): most often memory that ran out",
        given=f"exit code {exit_code}, where {available_bytes() / _GIB:.1f} GiB are for all that runs",
        expected="memory for all that the stage holds at once",
        do=f"{advice}. If it was killed by hand: {log} has what it wrote",
    )
