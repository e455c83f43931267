"""Measures the encoder on the whole validation set, every token a target once."""

import json
from dataclasses import asdict
from pathlib import Path

import torch
from tokenizers import Tokenizer

from clozeline.atomic import replacing_file, replacing_folder
from clozeline.evaluation import examples as example_page
from clozeline.evaluation import figures, unigram
from clozeline.model import language_model
from clozeline.model.batches import Split
from clozeline.params import EvaluateParams
from clozeline.progress import ProgressBar
from clozeline.tokens.shards import TokenShards


def run(
    params: EvaluateParams, *, seed: int, encoder: Path, tokens: Path, tokenizer: Path, metrics: Path, examples: Path
) -> None:
    """Write the encoder's figures beside the unigram baseline's to `metrics`, and a page of predictions to `examples`.

    Raises:
        ArtifactError: the encoder or the shards are damaged, or their vocabularies differ.
    """
    model = language_model.load(encoder)
    shards = TokenShards.open(tokens, "validation")
    language_model.check_vocabulary(model, shards.vocab_size, tokens)
    split = Split.open(shards, params.max_length)
    with (
        ProgressBar("evaluate", len(split.rows) * figures.num_passes(model, params.num_folds)) as bar,
        torch.inference_mode(),
    ):
        measured = figures.measure(
            model,
            split,
            seed=seed,
            num_folds=params.num_folds,
            batch_tokens=params.batch_tokens,
            advance=bar.advance,
        )
    baseline = unigram.measure(TokenShards.open(tokens, "train"), shards, split.vocabulary)
    page = example_page.make_examples(
        model,
        split,
        Tokenizer.from_file(str(tokenizer / "tokenizer.json")),
        seed=seed,
        num_folds=params.num_folds,
        num_examples=params.num_examples,
    )
    with replacing_folder(examples) as folder:
        (folder / "examples.json").write_text(example_page.as_json(page), encoding="utf-8")
        (folder / "examples.txt").write_text(example_page.as_text(page), encoding="utf-8")
        (folder / "examples.html").write_text(example_page.as_html(page), encoding="utf-8")
    report = asdict(measured) | {f"unigram_{name}": value for name, value in asdict(baseline).items()}
    with replacing_file(metrics) as file:
        file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
