"""Stage `export`: turn a trained model into a package of graphs, tokenizer and manifest, and check the graphs."""

from dataclasses import replace
from pathlib import Path

from clozeline.exporting import exams, quantization
from clozeline.exporting.packaging import Examined, warn_of_few_texts, write_package
from clozeline.exporting.trained import open_trained
from clozeline.params.delivery import ExportParams
from clozeline.records.finetune.scored_items import read_held_out


def run(
    params: ExportParams, *, model: Path, texts: Path, lock: Path, out: Path, metrics: Path, family: str | None = None
) -> None:
    """Export the trained model in the folder `model` to the package folder `out`.

    The first INT8 scheme of the ladder that passes its gates is served, with fixed scales if they lose nothing.
    If none passes, fp32 is served, and the package holds no INT8 graph.

    Args:
        params: the section `export` of params.yaml.
        model: a masked language model, a classifier, a tagger, a question answerer or an encoder without a head, as
            transformers saves it, with tokenizer.json and, if its training left some, held-out items for the exam.
        texts: Parquet file whose column `text` holds the texts of the exam if there are no held-out items.
        lock: the requirements lock; its hash goes into the manifest.
        out: package folder, unchanged if anything fails.
        metrics: JSON file.
        family: `pretrain.model.family` of params.yaml, which opens your own encoder.

    Raises:
        ArtifactError: `model` or a held-out item is incomplete or damaged, or the model's kind cannot be exported.
        DataError: `texts` is not a Parquet file, lacks the column `text` or `export.label_field`, or holds no text that
            the model can answer.
        GateError: the fp32 graph does not compute what the trained model computes.
    """
    num_texts = params.num_agreement_texts
    read = exams.read_sample(texts, num_texts + quantization.NUM_CALIBRATION_TEXTS, params.label_field)
    trained = open_trained(model, family=family)
    read = replace(read, held_out=read_held_out(model)[:num_texts])
    sample, calibration = read.parted(num_texts, quantization.NUM_CALIBRATION_TEXTS)
    warn_of_few_texts(texts, sample, calibration, params)
    write_package(trained, Examined(sample, calibration.texts), params, lock=lock, out=out, metrics=metrics)
