"""The lines of the README that ask with each client are run as they stand there, of another address and model."""

import re
from pathlib import Path

import httpx
import numpy as np

README = Path(__file__).parents[2] / "README.md"


def test_each_client_of_the_readme_is_answered(client: httpx.Client) -> None:
    found = re.search(r"<!-- clients: .*?```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    lines = found[1].replace("clozeline-encoder", "encoder").replace("8000", str(client.base_url.port))
    answered: dict[str, object] = {}
    exec(compile(lines, "README.md", "exec"), answered)
    vectors = [one.embedding for one in answered["vectors"]]
    np.testing.assert_allclose(answered["vectors_NH"], vectors, atol=1e-6)
    np.testing.assert_allclose([record["embedding"] for record in answered["records"]], vectors, atol=1e-6)
    assert len(answered["words"]) == 3
    assert len(answered["labels"]) == 2
    assert all(entity.entity_group for entity in answered["found"])
    answer = answered["answer"]
    assert answered["where"]["context"][answer.start : answer.end] == answer.answer
    assert {label["label"] for label in answered["chosen"]} == {"list", "file"}
    assert sorted(rank["index"] for rank in answered["ranks"]) == [0, 1]
