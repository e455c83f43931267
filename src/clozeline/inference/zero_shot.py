"""Labels that nobody trained: by what an encoder fills into a prompt, or by what a model of entailment makes of one.

C labels, M masks, V vocabulary.
"""

import re
from collections.abc import Sequence

import numpy as np

from clozeline.errors import DataError
from clozeline.inference.classifier import Classifier, LabelScore
from clozeline.inference.encoder import Encoder
from clozeline.inference.errors import TargetError, TextTooLongError
from clozeline.inference.open_model import OpenModel
from clozeline.inference.question import Question, Rows
from clozeline.inference.scores import likeliest, softmax

BLANK = "{}"
TEMPLATE = f"This text is about {BLANK}."
ONE_BLANK = r"^[^{}]*\{\}[^{}]*$"
_ENTAILMENT, _CONTRADICTION = "entailment", "contradiction"


def tells_entailment(model: OpenModel) -> bool:
    """Whether it was trained to say if its second text follows from its first one."""
    return isinstance(model, Classifier) and model.manifest.reads_pairs and _place_of(model, _ENTAILMENT) is not None


def can_choose(model: OpenModel) -> bool:
    """Whether it can be asked here at all."""
    fills = isinstance(model, Encoder) and model.manifest.special_tokens.mask_id is not None
    return fills or tells_entailment(model)


def choose(
    model: OpenModel,
    text: str,
    labels: Sequence[str],
    *,
    template: str = TEMPLATE,
    multi_label: bool = False,
    truncate: bool = False,
) -> list[LabelScore]:
    """The labels with their scores, best first; `multi_label`: each for itself, which entailment alone can tell.

    Raises:
        TargetError: a word of a label is not one token, and the model is an encoder.
        TextTooLongError: text and prompt are too long, and `truncate` is not set.
        DataError: the template has no blank, or more than one.
    """
    if isinstance(model, Classifier):
        assert tells_entailment(model), "can_choose says which models can be asked"
        question = choosing_by_entailment(model, text, labels, template=template, truncate=truncate)
        return chosen(labels, model.answers(question), multi_label=multi_label)
    assert isinstance(model, Encoder), "can_choose says which models can be asked"
    assert not multi_label, "the labels of an encoder compete for one blank"
    (scores,) = model.answers(choosing_by_cloze(model, text, labels, template=template, truncate=truncate))
    return scores


def choosing_by_cloze(
    encoder: Encoder, text: str, labels: Sequence[str], *, template: str = TEMPLATE, truncate: bool = False
) -> Question[list[LabelScore]]:
    """The labels with their probabilities among each other, best first: the mean log-probability of a label's words in
    the blank of the prompt behind the text (Schick & Schuetze 2021).

    Raises:
        TargetError: a word of a label is not one token.
        TextTooLongError: text and prompt are too long, and `truncate` is not set.
        DataError: the template has no blank, or more than one.
    """
    mask_token = encoder.manifest.special_tokens.mask_token
    assert mask_token is not None
    prompt = _check_template(template).replace(BLANK, mask_token)
    ids_of_labels = [_word_ids(encoder, label) for label in labels]
    (read,) = encoder.tokenize([f"{_cut(encoder, text, prompt, truncate)} {prompt}"])

    def scores(position: int, logits_MV: Rows) -> list[LabelScore]:
        # The text before the prompt may have masks too.
        mean_C = np.array([logits_MV[-1, ids].mean() for ids in ids_of_labels], dtype=np.float32)
        return [LabelScore(labels[place], score) for place, score in likeliest(mean_C, len(labels))]

    return Question([read], "logits", scores)


def choosing_by_entailment(
    classifier: Classifier, text: str, labels: Sequence[str], *, template: str = TEMPLATE, truncate: bool = False
) -> Question[tuple[float, float]]:
    """For each label, the logits that the prompt with it follows from the text, and that it does not: for `chosen`.

    Raises:
        TextTooLongError: text and prompt are too long, and `truncate` is not set.
        DataError: the template has no blank, or more than one.
    """
    before, _, after = _check_template(template).partition(BLANK)
    entailment, contradiction = _place_of(classifier, _ENTAILMENT), _place_of(classifier, _CONTRADICTION)
    assert entailment is not None
    others = [place for place in range(len(classifier.manifest.labels)) if place != entailment]
    against = others[-1] if contradiction is None else contradiction
    pairs = [(text, f"{before}{label}{after}") for label in labels]
    return Question(
        classifier.tokenize(pairs, truncate=truncate),
        "logits",
        lambda position, logits_C: (float(logits_C[entailment]), float(logits_C[against])),
    )


def chosen(labels: Sequence[str], entailed: Sequence[tuple[float, float]], *, multi_label: bool) -> list[LabelScore]:
    """The labels, best first, scored as transformers' pipeline does: among each other, or each for itself."""
    logits_C2 = np.array(entailed, dtype=np.float32)
    score_C = softmax(logits_C2)[:, 0] if multi_label else softmax(logits_C2[None, :, 0])[0]
    return [LabelScore(labels[place], float(score_C[place])) for place in np.argsort(-score_C, kind="stable")]


def _place_of(model: OpenModel, name: str) -> int | None:
    return next((place for place, label in enumerate(model.manifest.labels) if label.lower() == name), None)


def _check_template(template: str) -> str:
    if not re.search(ONE_BLANK, template):
        raise DataError(
            "`hypothesis_template` cannot be used",
            given=repr(template[:60]),
            expected=f"{BLANK} once, where the label belongs, and no other brace",
            do=f"write it as {TEMPLATE!r}",
        )
    return template


def _word_ids(encoder: Encoder, label: str) -> list[int]:
    # Byte-level tokenizers write the space before a word into its token; to others it is none.
    ids = [encoder.tokenizer.ids_of(f" {word}") for word in label.split()]
    specials = encoder.manifest.special_tokens.ids
    wrong = [
        word for word, of_word in zip(label.split(), ids, strict=True) if len(of_word) != 1 or of_word[0] in specials
    ]
    if wrong or not ids:
        raise TargetError(
            f"label {label!r} is not of words that the model could fill in",
            given=", ".join(wrong) or "no word",
            expected="words that are one token each (a model of entailment takes any)",
            do="say it in other words, or serve a classifier that was trained on entailment",
        )
    return [of_word[0] for of_word in ids]


def _cut(encoder: Encoder, text: str, prompt: str, truncate: bool) -> str:
    """The text, as much of it as leaves room for the prompt."""
    (num_prompt_tokens,) = encoder.count_tokens([prompt])
    room = encoder.manifest.max_length - num_prompt_tokens
    kept, _ = encoder.tokenizer.first_tokens(text, max(room, 1))
    if room < 1 or (kept != text and not truncate):
        raise TextTooLongError(
            "is too long for the model",
            number=0,
            given=f"{text[:60]!r}…, and a prompt of {num_prompt_tokens} tokens",
            expected=f"at most {encoder.manifest.max_length:,} tokens together, special tokens among them",
            do="shorten it, or ask for truncation (its end is then not read)",
        )
    return kept
