"""Errors for killed stages: by the kernel because memory ran out, or by a person or a program."""

import signal
from collections.abc import Mapping
from typing import Final

from clozeline.errors import ClozelineError
from clozeline.machine.memory import available_bytes

_EXIT_CODES: Final = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""Exit codes for SIGKILL from `subprocess` and from a shell."""
_GIB: Final = 2**30
_ANEW: Final = "With other settings the training starts over, with the same ones it continues from its last checkpoint"
_SETTINGS: Final[Mapping[str, str]] = {
    "pretrain": "set `pretrain.micro_batch_tokens` lower than the tokens of a batch (the step stays the same) or"
    f" `pretrain.gradient_checkpointing: true`; `clozeline plan` shows the memory of a step. {_ANEW}",
    "evaluate": "lower `evaluate.max_length`",
    "finetune": "set `finetune.{task}.micro_batch_tokens` lower than the tokens of a batch (the step stays the same) or"
    f" lower `finetune.{{task}}.max_length`. {_ANEW}",
}
"""Advice by stage: settings in params.yaml that reduce its memory."""
_MORE_MEMORY: Final = "give the stage more memory, or end other programs, and run again"
_BY_HAND: Final = (
    "run the same command again: finished stages are kept, and a training continues from its last checkpoint"
)


def is_killed(exit_code: int) -> bool:
    return exit_code in _EXIT_CODES


def failure_of_killed(
    name: str, exit_code: int, log: str, out_of_memory_kills: int | None, memory_bytes: int | None = None
) -> ClozelineError:
    """Return the error for a stage that was killed.

    `name`: name of the stage, with its task. `log`: path of its whole output. `out_of_memory_kills`: as in `Ended`.
    `memory_bytes`: memory of the machine that it ran on; None: this one.
    """
    if out_of_memory_kills == 0:
        return ClozelineError(
            f"stage `{name}` was killed (signal 9) by a person or a program: memory did not run out",
            given=f"exit code {exit_code}; meanwhile the kernel killed no process for lack of memory",
            expected="a stage that runs to its end",
            do=f"{_BY_HAND}; its output is in {log}",
        )
    cause = "memory ran out" if out_of_memory_kills else "by hand, or because memory ran out"
    stage, _, task = name.partition("@")
    setting = _SETTINGS.get(stage)
    advice = _MORE_MEMORY if setting is None else f"{_MORE_MEMORY}; or {setting.format(task=task)}"
    gib = (memory_bytes or available_bytes()) / _GIB
    return ClozelineError(
        f"stage `{name}` was killed (signal 9): {cause}",
        given=f"exit code {exit_code}; all programs together may use {gib:.1f} GiB",
        expected="enough memory for the stage",
        do=f"{advice}. The output of the stage is in {log}",
    )
