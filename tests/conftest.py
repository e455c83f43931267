"""Fixtures for the tests of several rooms: token shards and params small enough to train on in a second."""

import atexit
import gc
import getpass
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from clozeline.params.pretraining import PretrainParams, laid_over
from clozeline.params.reading import read_params
from clozeline.records.reading.tokens import INFO_NAME, SpecialIds, TokensInfo
from tests.make.servers import held_ports
from tests.make.texts import write_documents
from tests.slow_tests import is_slow

pytest_plugins = ["tests.make.session", "tests.make.models", "tests.make.projects"]

PROJECT = Path(__file__).parents[1]
# Files that take a minute or more, the longest first; those of `flows` run after the other rooms.
LONGEST = (
    "infra/test_stack.py",
    "exporting/test_to_onnx.py",
    "stages/test_whole_line.py",
    "cluster/test_ray.py",
    "drill/test_short_drill.py",
    "infra/test_prefect.py",
    "tasks/test_task.py",
    "stages/test_export.py",
    "infra/test_alerts.py",
    "cli/test_stage.py",
    "versions/test_remote.py",
    "flows/test_release.py",
    "flows/test_killed.py",
    "flows/test_continue.py",
    "flows/test_pipeline.py",
)
VOCAB_SIZE = 64
SPECIAL_IDS = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4, every=(0, 1, 2, 3, 4))

Documents = Sequence[np.ndarray]
TokensMaker = Callable[[Documents, Documents], Path]


def pytest_addoption() -> None:
    """Limit each of several workers, and the processes that its tests start, to its share of the cores; keep what is
    compiled, and nothing that tests and tools leave in the folder for temporary files or in the cache of the hub.

    This hook adds no option. It is used because pytest calls it as soon as it has read this file, but calls
    `pytest_configure` only after the conftest files of the rooms whose files were named on the command line. Some of
    these import torch, which reads these variables.
    """
    # Images often set it. Each worker would compile every test again, for 8 s, and each stage in a copy of the project
    # its code.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        # Stages run as `python`, which has to be this one, as with `make`.
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        _use_temporary_folder(TemporaryDirectory(prefix="clozeline-tests-", ignore_cleanup_errors=True))
    if num_workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
        assert "torch" not in sys.modules, "it has read these variables already"
        os.environ.setdefault("OMP_NUM_THREADS", str(max(num_cores() // int(num_workers), 1)))
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def _use_temporary_folder(folder: "TemporaryDirectory[str]") -> None:
    """Let this process and those that it starts use `folder`, which goes when this process ends.

    Prefect's worker and torchrun leave folders, `datasets` leaves locks. Pytest's own folders stay where they were.
    """
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    # What torch compiled stays for the next session.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}")
    os.environ["TMPDIR"] = tempfile.tempdir = folder.name
    os.environ["HF_HOME"] = f"{folder.name}/huggingface"
    atexit.register(folder.cleanup)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are imported, and never look for any in what was imported.

    It stays until the end: 700,000 objects, which each full collection would look through.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        import hypothesis  # noqa: F401  # on its import it looks for what refers to trio's generator, which may be frozen

        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture
def offline_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the hub's library offline. Its cached session is closed, because the next test may need other settings."""
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    huggingface_hub.close_session()
    yield
    huggingface_hub.close_session()


def num_cores() -> int:
    return len(os.sched_getaffinity(0))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """`-n auto`: one more than there are cores, because tests that wait for a server or a process leave theirs idle.
    Fast tests wait for nothing, so they get one worker for each core.

    Each worker imports all that is tested, so more than a few cost more memory than they save time.
    """
    is_fast = config.option.markexpr == "not slow"
    return min(num_cores() + (not is_fast), 4)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow tests, before `-m` selects by the mark; then put files in the order in which workers get them.

    Prefect's threads outlive the flow that began them, and what is forked from their process ends in an error: the
    tests that run flows in this process come last. Otherwise long files come first, so that no worker has one left
    when the others are done.
    """
    for item in items:
        if is_slow(item):
            item.add_marker("slow")
    num_slow = Counter(item.path for item in items if item.get_closest_marker("slow"))

    order = {PROJECT / "tests" / path: place for place, path in enumerate(LONGEST)}

    def place(item: pytest.Item) -> tuple[bool, int, int]:
        return item.path.parts[-2] == "flows", order.get(item.path, len(order)), -num_slow[item.path]

    items.sort(key=place)


@pytest.fixture(scope="session")
def free_port() -> Iterator[Callable[[], int]]:
    """`free_port()`: a port of the loopback for a server that a test starts, until the session ends."""
    with held_ports() as free_port:
        yield free_port


@pytest.fixture
def make_tokens(tmp_path: Path, made_tiny_tokenizer: Path) -> TokensMaker:
    """`make_tokens(train, validation)` writes shards of these documents and returns their folder."""

    return lambda train, validation: write_tokens(tmp_path / "tokens", made_tiny_tokenizer, train, validation)


def write_tokens(folder: Path, tokenizer: Path, train: Documents, validation: Documents) -> Path:
    folder.mkdir()
    splits = {
        split: write_documents(folder, split, documents, bytes_per_token=4, shard_tokens=10_000)
        for split, documents in (("train", train), ("validation", validation))
    }
    TokensInfo.of(
        vocab_size=VOCAB_SIZE,
        tokenizer_sha256=sha256((tokenizer / "tokenizer.json").read_bytes()).hexdigest(),
        special_ids=SPECIAL_IDS,
        splits=splits,
    ).write(folder / INFO_NAME)
    return folder


@pytest.fixture
def tiny_tokens(make_tokens: TokensMaker) -> Path:
    """A language that can be learned: after each word comes the next one, around the vocabulary."""
    return make_tokens(counting_documents(300, seed=0), counting_documents(40, seed=1))


def counting_documents(num_documents: int, seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    ordinary = VOCAB_SIZE - len(SPECIAL_IDS.every)
    return [
        (random.integers(ordinary) + np.arange(random.integers(5, 40))) % ordinary + len(SPECIAL_IDS.every)
        for _ in range(num_documents)
    ]


@pytest.fixture
def tiny_tokenizer(made_tiny_tokenizer: Path, tmp_path: Path) -> Path:
    """A tokenizer folder for the tiny language: words w5 … w63."""
    return shutil.copytree(made_tiny_tokenizer, tmp_path / "tokenizer")


@pytest.fixture(scope="session")
def made_tiny_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokenizer folder that `tiny_tokenizer` copies."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    from clozeline.tokenizing.tokenizer.folder import SPECIAL_TOKENS

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(5, VOCAB_SIZE))]
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    folder = tmp_path_factory.mktemp("tiny") / "tokenizer"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL_TOKENS).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_pretraining() -> PretrainParams:
    """The project's own pretrain section, shrunk."""
    from tests.make.projects import TINY_MODEL

    changes = {
        "model": TINY_MODEL,
        "max_length": 32,
        "batch_tokens": 256,
        "masking": {"mask_rate": 0.2, "final_mask_rate": None},
        "optimizer": {"learning_rate": 0.02},
        "schedule": {"warmup_fraction": 0.125},
        "steps": 40,
        "tokens": None,
        "validation": {"every_steps": None},
        "log_every_steps": 5,
        "checkpoint_every_steps": 10,
        "num_checkpoints": 2,
        "num_threads": 1,
    }
    params = read_params(PROJECT / "params.yaml").pretrain
    return PretrainParams.model_validate(laid_over(params.model_dump(), changes))
