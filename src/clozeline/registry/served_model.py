"""A package of `dist/` as an MLflow model: this file itself is what MLflow stores and runs, so nothing is pickled.

`mlflow.pyfunc.load_model("models:/clozeline-encoder@champion").predict(["Returns a [MASK]."])` gives one record for
each text: of an encoder its `embedding`, and for each mask the likeliest words (if it names words); of a classifier its
`labels`; of a tagger its `entities`. A question answerer takes JSON, `{"question": …, "context": …}` in each text, and
gives its `answers`; a classifier of pairs takes `{"text": …, "text_pair": …}`.
"""

from pathlib import Path
from typing import Any

from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

from clozeline.inference.model_kinds import kind_of
from clozeline.inference.package import load
from clozeline.registry import PACKAGE


class ServedModel(PythonModel):
    """Answers with the graph that the manifest says is served.

    `params` may set `top_k` (answers for each mask or text) and `truncate`.
    """

    def load_context(self, context: PythonModelContext) -> None:
        """Open the package; an `ArtifactError` names the file that is missing or damaged."""
        self._model = load(Path(context.artifacts[PACKAGE]))

    def predict(
        self, context: PythonModelContext, model_input: list[str], params: dict[str, Any] | None = None
    ) -> list[object]:
        """One record for each text of `model_input`.

        Not typed further: MLflow reads the annotation, and warns of every `Any` in it.
        """
        options = {"top_k": 5, "truncate": False} | (params or {})
        answers = kind_of(self._model.manifest.task).plain_answers
        return list(answers(self._model, model_input, options["top_k"], options["truncate"]))


set_model(ServedModel())
