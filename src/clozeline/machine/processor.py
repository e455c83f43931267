"""Name of the processor and its vector instructions. Timings are valid for equal processors only."""

import platform
from pathlib import Path

_VECTORS = ("avx512_bf16", "avx512_vnni", "avx_vnni", "avx512f", "avx2", "asimddp", "asimd")


def processor(facts: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name and the vector and INT8 instruction sets that the kernel reports."""
    lines = facts.read_text(encoding="utf-8").splitlines() if facts.is_file() else []
    values = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = set(values.get("flags", values.get("Features", "")).split())
    vectors = [name for name in _VECTORS if name in flags]
    name = values.get("model name", platform.processor() or platform.machine())
    return ", ".join([name, *vectors])
