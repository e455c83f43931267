"""Memory does not grow, whatever routes are called with whatever lengths and numbers of texts."""

import json
import random
import re
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.make.packages import write_encoder
from tests.serving.conftest import Serve

# Name of an example → its model, for examples of another model than the route's default.
ASKED = {"pairs": "ranker", "entities": "names", "answers": "reader", "greedy": "writer", "drawn": "writer"}
NUM_REQUESTS = 10_000
WARM_UP = 4_000
AT_ONCE = 8
# Hidden size of the encoder: a run of one shape keeps hundreds of KB, and there are hundreds of shapes.
WIDTH = 256
WORDS = ["a", "the", "list", "of", "漢", "lists"]
# Keys whose lists may have any number of items.
MANY = {"inputs", "input", "prompt", "texts", "sentences", "ids"}
CHANCE = random.Random(0)
# Path and body of the examples of each route.
Examples = dict[str, list[tuple[str, Any]]]


def examples_of(client: httpx.Client) -> Examples:
    """Return the examples of the server's document."""
    versions = {card["name"]: card["version"] for card in client.get("/models").json()["models"]}
    asked: Examples = {}
    for route, operations in client.get("/openapi.json").json()["paths"].items():
        body = operations.get("post", {}).get("requestBody", {"content": {"application/json": {"examples": {}}}})
        for name, example in body["content"]["application/json"]["examples"].items():
            model = ASKED.get(name, "encoder")
            path = route.format(model=model, version=versions[model])
            asked.setdefault(route, []).append((path, example["value"]))
    return asked


def any_of(examples: Examples) -> tuple[str, str, Any]:
    """Return a route, and a path and a body with other texts; some requests cannot be answered."""
    kind = CHANCE.random()
    if kind < 0.05:
        return "nowhere", f"/nothing/{kind}", {}
    if kind < 0.15:
        return "too long", "/embed", {"inputs": "a " * CHANCE.randint(80, 4_000)}
    route = CHANCE.choice(sorted(examples))
    path, body = CHANCE.choice(examples[route])
    return route, path, varied(body)


def varied(value: Any, key: str = "") -> Any:
    """Return `value` with other words in its texts, and with more texts or ids where any number is allowed."""
    if isinstance(value, dict):
        return {inner: varied(found, inner) for inner, found in value.items()}
    if isinstance(value, list):
        is_any_number = key in MANY and not isinstance(value[0], dict)
        return [
            varied(item) for item in (CHANCE.choices(value, k=CHANCE.choice([1, 1, 2, 8])) if is_any_number else value)
        ]
    if isinstance(value, str) and " " in value and "{}" not in value:
        words = CHANCE.choices(WORDS, k=CHANCE.randint(1, 40)) + ["[MASK]"] * value.count("[MASK]")
        return " ".join(CHANCE.sample(words, len(words)))
    return value


@pytest.fixture
def serve(dist: Path, heads: Path, tmp_path: Path) -> Iterator[Serve]:
    """Server with a model of each task. Its log is discarded, because nobody reads ten thousand lines from the pipe."""
    write_encoder(tmp_path / "encoder", num_layers=3, width=WIDTH)
    quiet = "import os\nos.dup2(os.open(os.devnull, os.O_WRONLY), 2)\n"
    models = [tmp_path / "encoder", dist / "library", *sorted(heads.iterdir())]
    server = Serve(dist.parent, *map(str, models), "--port", "0", "--threads", "1", before=quiet)
    yield server
    server.process.kill()
    server.process.communicate()


def resident_bytes(client: httpx.Client) -> float:
    """Return the server's resident memory in bytes, from its own metrics."""
    found = re.search(r"^process_resident_memory_bytes (\S+)$", client.get("/metrics").text, re.MULTILINE)
    assert found
    return float(found[1])


def status_of(connection: HTTPConnection, path: str, body: object) -> int:
    """Ask by a connection, which stays open."""
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    return answer.status


def test_memory_does_not_grow_over_ten_thousand_random_requests(serve: Serve) -> None:
    url = serve.url()
    resident = []
    answered: Counter[tuple[str, int]] = Counter()
    connections = [HTTPConnection(url.removeprefix("http://")) for _ in range(AT_ONCE)]
    with httpx.Client(base_url=url, trust_env=False) as client, ThreadPoolExecutor(AT_ONCE) as clients:
        examples = examples_of(client)
        for number in range(0, NUM_REQUESTS, AT_ONCE):
            if number % 1_000 == 0 and number >= WARM_UP:
                resident.append(resident_bytes(client))
            routes, paths, bodies = zip(*(any_of(examples) for _ in connections), strict=True)
            answered.update(zip(routes, clients.map(status_of, connections, paths, bodies), strict=True))
        for connection in connections:
            connection.close()
        resident.append(resident_bytes(client))
    serve.process.send_signal(signal.SIGTERM)
    assert serve.end()[0] == 0
    assert {status for _, status in answered} <= {200, 400, 404, 422}
    assert [route for route in examples if answered[route, 200] < 100] == []
    assert sum(count for (_, status), count in answered.items() if status == 200) > 0.7 * NUM_REQUESTS
    assert resident[-1] < 1.2 * resident[0], f"resident MiB: {[round(size / 2**20) for size in resident]}"
    grown_bytes = resident[-1] - resident[0]
    assert grown_bytes < 4 * 2**20, f"{grown_bytes / (NUM_REQUESTS - WARM_UP):,.0f} bytes of each request are kept"
