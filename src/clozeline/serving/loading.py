"""From a source to a model that has answered once."""

from clozeline.inference.classifier import Classifier
from clozeline.inference.encoder import Encoder
from clozeline.inference.manifest import FILES, Precision
from clozeline.inference.package import load
from clozeline.serving.catalogue import Identity, ServedModel
from clozeline.serving.sources import ModelSource, fetched

LoadedModel = ServedModel[Encoder | Classifier]


def open_source(source: ModelSource, precision: Precision) -> LoadedModel:
    """Fetch, check and load a model, and run it once, so that its first client does not wait for it.

    Raises:
        ArtifactError: it is not there, or its bytes are not those that were exported.
        TransientError: the registry does not answer.
    """
    found = fetched(source)
    model = load(found.folder, precision=precision)
    sha256 = model.manifest.files[{"int8": FILES.int8, "fp32": FILES.fp32}[precision]].sha256
    _warm_up(model)
    return ServedModel(Identity(source.name, source.place, found.version or sha256[:12], sha256, precision), model)


def _warm_up(model: Encoder | Classifier) -> None:
    if isinstance(model, Classifier):
        model.classify(["warm"])
        return
    model.embed(["warm"])
    mask_token = model.manifest.special_tokens.mask_token
    if mask_token:
        model.fill([mask_token])
