"""Opens a package (`dist/<model>/`): checks its files against the manifest, then answers with it."""

from pathlib import Path

from clozeline.inference.batching import BATCH_TOKENS
from clozeline.inference.classifier import Classifier
from clozeline.inference.encoder import Encoder
from clozeline.inference.manifest import FILES, Precision, Task, read_manifest, verify
from clozeline.inference.session import GraphSession
from clozeline.inference.tokenization import TextTokenizer

_ANSWERING: dict[Task, type[Encoder] | type[Classifier]] = {"fill-mask": Encoder, "text-classification": Classifier}


def load(
    folder: Path, *, precision: Precision = "int8", num_threads: int = 1, batch_tokens: int = BATCH_TOKENS
) -> Encoder | Classifier:
    """Open the package in `folder`; what comes back can be used from many threads at once.

    Args:
        folder: with the files of `manifest.FILES`.
        precision: which of the two graphs answers.
        num_threads: cores that one run may use. Many texts go fastest with 1 here and a thread per core outside;
            one short text answers soonest with every core here.
        batch_tokens: most tokens that run together, padding among them.

    Raises:
        ArtifactError: a file is missing, or its bytes are not those that were exported.
    """
    manifest = read_manifest(folder)
    graph = {"int8": FILES.int8, "fp32": FILES.fp32}[precision]
    verify(folder, manifest, names=[graph, FILES.tokenizer])
    tokenizer = TextTokenizer(
        folder / FILES.tokenizer, max_length=manifest.max_length, mask_id=manifest.special_tokens.mask_id
    )
    session = GraphSession(folder / graph, input_names=manifest.input_names, num_threads=num_threads)
    return _ANSWERING[manifest.task](manifest, tokenizer, session, batch_tokens=batch_tokens)
