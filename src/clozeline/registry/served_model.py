"""A package of `dist/` as an MLflow model. MLflow stores and runs this file itself, so nothing is pickled.

`mlflow.pyfunc.load_model("models:/clozeline-encoder@champion").predict(["Returns a [MASK]."])` returns one record for
each text. An encoder gives its `embedding` and, with a vocabulary head, the likeliest words for each mask, or a
`completion` if it is causal; a classifier its `labels`; a tagger its `entities`. A question answerer takes JSON,
`{"question": …, "context": …}`, in each text and gives its `answers`; a classifier of pairs takes
`{"text": …, "text_pair": …}`.
"""

from pathlib import Path
from typing import Any

from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

from clozeline.inference.package import load
from clozeline.registry import models, versions


class PyfuncModel(PythonModel):
    """Answers with the graph that the manifest names as served.

    `params` may set `top_k` (answers for each mask or text) and `truncate`.
    """

    def load_context(self, context: PythonModelContext) -> None:
        """Open the package.

        Raises:
            ArtifactError: a file is missing or damaged, or the package differs from the registered one.
            TransientError: the registry does not answer.
        """
        package = Path(context.artifacts[models.PACKAGE])
        versions.check_loaded_by_mlflow(package)
        self._model = load(package)

    def predict(
        self, context: PythonModelContext, model_input: list[str], params: dict[str, Any] | None = None
    ) -> list[object]:
        """Return one record for each text of `model_input`.

        The return type is not narrower because MLflow reads the annotation and warns about every `Any` in it.
        """
        options = {"top_k": 5, "truncate": False} | (params or {})
        return list(self._model.records(model_input, top_k=options["top_k"], truncate=options["truncate"]))


set_model(PyfuncModel())
