"""Description of the machine that a benchmark runs on."""

import os
import platform
from pathlib import Path
from typing import Any


def describe_machine(num_threads: int) -> dict[str, Any]:
    """Return the processor, the cores of this process, the threads of a side, and the machine's recent load."""
    return {
        "cpu": cpu_model(),
        "cores": available_cores(),
        "threads": num_threads,
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
    }


def available_cores() -> int:
    return len(os.sched_getaffinity(0))


def cpu_model(facts: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name, its widest vector instructions and those for INT8, as the kernel reports them."""
    lines = facts.read_text(encoding="utf-8").splitlines() if facts.is_file() else []
    told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = set(told.get("flags", "").split())
    sets = (("avx512_bf16", "avx512f", "avx2"), ("avx512_vnni", "avx_vnni"))
    widest = [next((flag for flag in one if flag in flags), "") for one in sets]
    return " ".join(filter(None, [told.get("model name", platform.processor() or platform.machine()), *widest]))
