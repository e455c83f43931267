"""A processor is described by its name and by its instruction sets that make INT8 fast."""

from pathlib import Path

import pytest

from clozeline.system.machine import processor


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("flags\t\t: sse avx2 avx512f avx512_vnni", "EPYC, avx512_vnni, avx512f, avx2"),
        ("flags\t\t: avx2 avx_vnni", "EPYC, avx_vnni, avx2"),
        ("Features\t: fp asimd asimddp", "EPYC, asimddp, asimd"),
        ("flags\t\t: sse", "EPYC"),
    ],
)
def test_a_processor_is_described_by_its_name_and_instructions(tmp_path: Path, line: str, told: str) -> None:
    facts = tmp_path / "cpuinfo"
    facts.write_text(f"processor\t: 0\nmodel name\t: EPYC\n{line}\n", encoding="utf-8")
    assert processor(facts) == told


def test_the_processor_falls_back_to_the_machine_name(tmp_path: Path) -> None:
    assert processor(tmp_path / "nothing")
