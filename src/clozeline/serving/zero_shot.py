"""Zero-shot classification: choose labels by filling a prompt with an encoder, or with an entailment model.

Shapes: C labels, M masks, V vocabulary.
"""

import re
from collections.abc import Sequence

import numpy as np

from clozeline.inference import fields, language, open_model, tokenization
from clozeline.inference.classifier import Classifier, LabelScore
from clozeline.system.errors import DataError

BLANK = "{}"
_ENTAILMENT, _CONTRADICTION = "entailment", "contradiction"


def tells_entailment(model: open_model.OpenModel) -> bool:
    """Whether the model was trained to tell if its second text follows from the first."""
    return isinstance(model, Classifier) and model.manifest.reads_pairs and _place_of(model, _ENTAILMENT) is not None


def can_choose(model: open_model.OpenModel) -> bool:
    """Whether the model supports zero-shot classification."""
    fills = isinstance(model, language.OpenEncoder) and model.manifest.special_tokens.mask_id is not None
    return fills or tells_entailment(model)


def choosing(
    model: open_model.OpenModel,
    text: str,
    labels: Sequence[str],
    *,
    template: str = fields.TEMPLATE,
    multi_label: bool = False,
    truncate: bool = False,
) -> open_model.Dialogue[list[LabelScore]]:
    """Return the dialogue that gives the labels with their scores, best first.

    With `multi_label`, labels are scored independently; only an entailment model can do that.

    Raises:
        TargetError: a word of a label is not one token, and the model is an encoder.
        TextTooLongError: text and prompt are too long, and `truncate` is not set.
        DataError: the template has no blank, or more than one.
    """
    if isinstance(model, Classifier):
        entailed = yield from open_model.alone(lambda: _choosing_by_entailment(model, text, labels, template, truncate))
        return _chosen(labels, entailed, multi_label)
    assert isinstance(model, language.OpenEncoder), "can_choose says which models can be asked"
    assert not multi_label, "the labels of an encoder compete for one blank"
    (scores,) = yield from open_model.alone(lambda: _choosing_by_cloze(model, text, labels, template, truncate))
    return scores


def _choosing_by_cloze(
    encoder: language.OpenEncoder, text: str, labels: Sequence[str], template: str, truncate: bool
) -> open_model.Question[list[LabelScore]]:
    """Return the question whose answer is the labels with their probabilities, best first.

    The score of a label is the mean logit of its words in the blank of the prompt after the text (Schick & Schuetze
    2021); softmax over the labels makes it a probability.
    """
    mask_token = encoder.manifest.special_tokens.mask_token
    assert mask_token is not None
    prompt = _check_template(template).replace(BLANK, mask_token)
    ids_of_labels = [_word_ids(encoder, label) for label in labels]
    (read,) = encoder.tokenize([f"{_cut(encoder, text, prompt, truncate)} {prompt}"])

    def scores(position: int, logits_MV: open_model.Rows) -> list[LabelScore]:
        # The text before the prompt may contain masks too.
        mean_C = np.array([logits_MV[-1, ids].mean() for ids in ids_of_labels], dtype=np.float32)
        return [LabelScore(labels[place], score) for place, score in open_model.likeliest(mean_C, len(labels))]

    return open_model.Question([read], "logits", scores)


def _choosing_by_entailment(
    classifier: Classifier, text: str, labels: Sequence[str], template: str, truncate: bool
) -> open_model.Question[tuple[float, float]]:
    """Return the question that gives, for each label, the logits of entailment and contradiction, for `_chosen`."""
    before, _, after = _check_template(template).partition(BLANK)
    entailment, contradiction = _place_of(classifier, _ENTAILMENT), _place_of(classifier, _CONTRADICTION)
    assert entailment is not None
    others = [place for place in range(len(classifier.manifest.labels)) if place != entailment]
    against = others[-1] if contradiction is None else contradiction
    pairs = [(text, f"{before}{label}{after}") for label in labels]
    return open_model.Question(
        classifier.tokenize(pairs, truncate=truncate),
        "logits",
        lambda position, logits_C: (float(logits_C[entailment]), float(logits_C[against])),
    )


def _chosen(labels: Sequence[str], entailed: Sequence[tuple[float, float]], multi_label: bool) -> list[LabelScore]:
    """Return the labels, best first, scored against each other or independently, as in transformers' pipeline."""
    logits_C2 = np.array(entailed, dtype=np.float32)
    score_C = open_model.softmax(logits_C2)[:, 0] if multi_label else open_model.softmax(logits_C2[None, :, 0])[0]
    return [LabelScore(labels[place], float(score_C[place])) for place in np.argsort(-score_C, kind="stable")]


def _place_of(model: open_model.OpenModel, name: str) -> int | None:
    return next((place for place, label in enumerate(model.manifest.labels) if label.lower() == name), None)


def _check_template(template: str) -> str:
    if not re.search(fields.ONE_BLANK, template):
        raise DataError(
            "`hypothesis_template` cannot be used",
            given=repr(template[:60]),
            expected=f"{BLANK} once, where the label belongs, and no other braces",
            do=f"write it as {fields.TEMPLATE!r}",
        )
    return template


def _word_ids(encoder: language.OpenEncoder, label: str) -> list[int]:
    # Byte-level tokenizers include the space before a word in its token; others ignore it.
    ids = [encoder.tokenizer.ids_of(f" {word}") for word in label.split()]
    specials = encoder.manifest.special_tokens.ids
    wrong = [
        word for word, of_word in zip(label.split(), ids, strict=True) if len(of_word) != 1 or of_word[0] in specials
    ]
    if wrong or not ids:
        raise tokenization.TargetError(
            f"the words of label {label!r} cannot be filled into the prompt",
            given=", ".join(wrong) or "no word",
            expected="words of one token each (an entailment model takes any)",
            do="use other words, or serve a classifier that was trained on entailment",
        )
    return [of_word[0] for of_word in ids]


def _cut(encoder: language.OpenEncoder, text: str, prompt: str, truncate: bool) -> str:
    """Return the start of the text that leaves room for the prompt.

    Raises:
        TextTooLongError: the prompt leaves no room, or the text does not fit and `truncate` is not set.
    """
    (num_prompt_tokens,) = encoder.tokenizer.count([prompt])
    room = encoder.manifest.max_length - num_prompt_tokens
    kept, _ = encoder.tokenizer.first_tokens(text, max(room, 1))
    if room < 1 or (kept != text and not truncate):
        raise tokenization.TextTooLongError(
            "is too long for the model",
            number=0,
            given=f"{text[:60]!r}…, and a prompt of {num_prompt_tokens} tokens",
            expected=f"at most {encoder.manifest.max_length:,} tokens together, including special tokens",
            do="shorten it, or ask for truncation, which cuts its end",
        )
    return kept
