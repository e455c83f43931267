"""Operations of every kind of model on an open package: tokenize, batch, run the ONNX graph, rank its logits.

A batch holds texts of similar length: on a CPU, padding costs as much as text. A `Dialogue` is one inference job, run
either by a library call or by the workers of a server. Most have one `Question`.

Shapes: B texts of a batch, L tokens of the longest; V classes or vocabulary; T tokens, C tags.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import onnxruntime

from clozeline.inference.tokenization import Given, NotANumberError, TextTokenizer, TokenizedText
from clozeline.records.package import Manifest, ScoreFunction
from clozeline.system.errors import DataError

AnswerT_co = TypeVar("AnswerT_co", covariant=True)
# Part of a graph's output for one text, such as `embedding_H`, `logits_C`, or `logits_MV` of its masks.
Rows = npt.NDArray[np.float32]

# Tokens of a batch, including padding. Measured on 2 AVX2 cores: 256-512 is best, 4096 takes 1.6 times as long.
BATCH_TOKENS = 512

# Input [1] of a masked language model: whether only outputs at masks are requested.
MASKS_ONLY = "masks_only"
# Outputs that need the last layer at every position.
_OF_EVERY_POSITION = frozenset({"sentence_embedding", "last_hidden_state"})

AnswerT = TypeVar("AnswerT")
Records = list[dict[str, Any]]

_PARTS_PER_ANSWER = 16


@dataclass(frozen=True, slots=True)
class Question(Generic[AnswerT_co]):
    """Tokenized texts, the output of the graph to compute for them, and the function that reads answers from it."""

    texts: Sequence[TokenizedText]
    output: str
    read: Callable[[int, Rows], AnswerT_co]  # function from the index of a text and its rows to its answer
    most_characters: int = 0  # largest possible number of characters that all answers together repeat from the texts

    def answer(self, position: int, rows: Rows) -> AnswerT_co:
        """Return the answer to the text with the index `position`.

        Raises:
            NotANumberError: the rows contain NaN or infinity.
        """
        if not np.isfinite(rows).all():
            raise NotANumberError(
                f"{int((~np.isfinite(rows)).sum()):,} of {rows.size:,} values of {self.output!r} are not finite",
                do="serve another version (`clozeline rollback` returns to the previous one) or another precision",
            )
        return self.read(position, rows)


AnyQuestion = Question[Any]


@dataclass(frozen=True, slots=True)
class Round:
    """Questions that are asked together, before others follow from their answers."""

    questions: Sequence[AnyQuestion]
    # Largest possible number of tokens in the questions of all later rounds; read in the first round only.
    later_tokens: int = 0
    reading_characters: int = 0  # cost of the work on the answers: about that of tokenizing so many characters


# An inference job of one or more rounds: it is sent the lists of answers to each round, and returns its result.
Dialogue = Generator[Round, Any, AnswerT]


@dataclass(frozen=True, slots=True)
class Concluded(Generic[AnswerT]):
    """The end of a dialogue."""

    result: AnswerT


def advanced(dialogue: Dialogue[AnswerT], answers: Sequence[list[Any]] | None = None) -> Round | Concluded[AnswerT]:
    """Return the next round of `dialogue`, or its end; `answers` are those to the round before."""
    try:
        return dialogue.send(answers)
    except StopIteration as end:
        return Concluded(end.value)


def alone(question: Callable[[], Question[AnswerT]]) -> Dialogue[list[AnswerT]]:
    """Return the dialogue of one question, whose texts are tokenized when the dialogue begins."""
    answers: list[list[AnswerT]] = yield Round([question()])
    return answers[0]


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Texts that run through the graph together."""

    positions: tuple[int, ...]  # index of each row's text among those given
    input_ids_BL: npt.NDArray[np.int64]
    attention_mask_BL: npt.NDArray[np.int64]
    # 0 in the first text of a pair, 1 in the second; None without pairs.
    token_type_ids_BL: npt.NDArray[np.int64] | None = None


def batches(texts: Sequence[TokenizedText], *, pad_id: int, batch_tokens: int) -> Iterator[TextBatch]:
    """Group `texts` by length, at most `batch_tokens` tokens in a batch, including padding; a longer text runs alone.

    If INT8 activations share one scale in a batch, neighbours change the last digits of an answer. Texts of equal
    length are therefore ordered by content: the same texts in any order give the same batches and the same answers.
    """
    order = sorted(range(len(texts)), key=lambda position: (len(texts[position]), texts[position].ids_L.tobytes()))
    members: list[int] = []
    for position in order:
        if members and len(texts[position]) * (len(members) + 1) > batch_tokens:
            yield padded(texts, members, pad_id)
            members = []
        members.append(position)
    if members:
        yield padded(texts, members, pad_id)


def padded(texts: Sequence[TokenizedText], members: Sequence[int], pad_id: int) -> TextBatch:
    """Return the texts at the indices `members` as one batch of any size."""
    lengths_B = np.array([len(texts[position]) for position in members])
    attention_mask_BL = (np.arange(lengths_B.max()) < lengths_B[:, None]).astype(np.int64)
    input_ids_BL = np.full(attention_mask_BL.shape, pad_id, dtype=np.int64)
    input_ids_BL[attention_mask_BL == 1] = np.concatenate([texts[position].ids_L for position in members])
    return TextBatch(tuple(members), input_ids_BL, attention_mask_BL, _types(texts, members, attention_mask_BL))


def _types(
    texts: Sequence[TokenizedText], members: Sequence[int], attention_mask_BL: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64] | None:
    rows = [texts[position].types_L for position in members]
    if all(types_L is None for types_L in rows):
        return None
    types_BL = np.zeros_like(attention_mask_BL)
    for types_of_row_L, types_L in zip(types_BL, rows, strict=True):
        if types_L is not None:
            types_of_row_L[: len(types_L)] = types_L
    return types_BL


class GraphSession:
    """One open graph. It is thread-safe, because ONNX Runtime keeps no state between runs."""

    def __init__(self, path: Path, *, input_names: tuple[str, ...], num_threads: int, wide_sums: bool = False) -> None:
        """Open the graph in the file `path`.

        Args:
            path: file of the graph.
            input_names: names of the inputs to feed.
            num_threads: cores that one run may use.
            wide_sums: compute INT8 products so that no sum saturates on any processor; slower.
        """
        onnxruntime.disable_telemetry_events()  # from 1.32 on it sends telemetry unless the environment forbids it
        options = _options(num_threads)
        options.add_session_config_entry("session.x64quantprecision", str(int(wide_sums)))
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._input_names = input_names

    @property
    def takes(self) -> set[str]:
        """Names of the graph's inputs."""
        return {value.name for value in (*self._session.get_inputs(), *self._session.get_overridable_initializers())}

    @property
    def gives(self) -> set[str]:
        """Names of the graph's outputs."""
        return {value.name for value in self._session.get_outputs()}

    def run(self, batch: TextBatch, *outputs: str) -> list[npt.NDArray[np.float32]]:
        """Run the graph on `batch` and return the outputs of these names."""
        types_BL = batch.token_type_ids_BL
        known = {
            "input_ids": batch.input_ids_BL,
            "attention_mask": batch.attention_mask_BL,
            "token_type_ids": np.zeros_like(batch.input_ids_BL) if types_BL is None else types_BL,
            # ONNX Runtime computes outputs that are not requested too: embeddings, which need the whole last layer.
            MASKS_ONLY: np.array([_OF_EVERY_POSITION.isdisjoint(outputs)]),
        }
        values: list[npt.NDArray[np.float32]]
        values = self._session.run(list(outputs), {name: known[name] for name in self._input_names})
        return values


def _options(num_threads: int) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    # At 0, ONNX Runtime uses every core of the host, ignoring the limit of the container (onnxruntime #29510).
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    # A pattern is kept for each shape, and texts have all lengths: memory would grow without bound.
    options.enable_mem_pattern = False
    # Within a run, waking a sleeping thread takes longer than its share of a step. Between runs threads have to sleep.
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(num_threads > 1)))
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


class OpenModel(ABC):
    """Tokenizer and graph of one package. It is thread-safe, because its state never changes after construction."""

    part = ""  # key of its answer in a record, if that has probabilities

    def __init__(self, manifest: Manifest, tokenizer: TextTokenizer, session: GraphSession) -> None:
        self.manifest = manifest
        self.tokenizer = tokenizer
        self._session = session

    @property
    def main_output(self) -> str:
        """Name of the output with the most information, from which answers are read."""
        return self.manifest.outputs[0].name

    def tokenize(self, texts: Sequence[Given], *, truncate: bool = False) -> list[TokenizedText]:
        """Tokenize texts or pairs of texts.

        Raises:
            TextError: a text is longer than `manifest.max_length` tokens and `truncate` is not set,
                or is not valid Unicode.
        """
        return self.tokenizer.tokenize(texts, truncate=truncate)

    def run(self, texts: Sequence[TokenizedText], output: str) -> Iterator[tuple[TextBatch, npt.NDArray[np.float32]]]:
        """Yield each batch of `texts` with the graph's output `output` as soon as it is computed."""
        for batch, (values,) in self.run_batches(self.batches(texts), output):
            yield batch, values

    def batches(self, texts: Sequence[TokenizedText]) -> Iterator[TextBatch]:
        """Yield `texts` in the batches that run through the graph."""
        return batches(texts, pad_id=self.manifest.special_tokens.pad_id, batch_tokens=BATCH_TOKENS)

    def run_batches(
        self, grouped: Iterable[TextBatch], *outputs: str
    ) -> Iterator[tuple[TextBatch, list[npt.NDArray[np.float32]]]]:
        """Yield each batch of `grouped` with the named outputs of the graph; `split` divides them by text."""
        for batch in grouped:
            yield batch, self._run(batch, *outputs)

    def rows(self, texts: Sequence[TokenizedText], output: str) -> list[Rows]:
        """Run `texts` as one batch and return each text's part of the output `output`, in order."""
        batch = padded(texts, range(len(texts)), self.manifest.special_tokens.pad_id)
        (values,) = self._run(batch, output)
        return self.split(batch, output, values)

    def answers(self, question: Question[AnswerT]) -> list[AnswerT]:
        """Return the answer to each text of `question`, in order."""
        found: dict[int, AnswerT] = {}
        for batch, values in self.run(question.texts, question.output):
            for position, rows in zip(batch.positions, self.split(batch, question.output, values), strict=True):
                found[position] = question.answer(position, rows)
        return [found[position] for position in range(len(question.texts))]

    def converse(self, dialogue: Dialogue[AnswerT]) -> AnswerT:
        """Return the result of `dialogue`; the model answers each of its rounds."""
        step = advanced(dialogue)
        while isinstance(step, Round):
            step = advanced(dialogue, [self.answers(question) for question in step.questions])
        return step.result

    def count_unknown(self, text: TokenizedText) -> int:
        """Count the unknown tokens of `text`."""
        unknown_id = self.tokenizer.unknown_id
        return 0 if unknown_id is None else int(np.count_nonzero(text.ids_L == unknown_id))

    def split(self, batch: TextBatch, output: str, values: npt.NDArray[np.float32]) -> list[Rows]:
        """Return each text's part of an output: here one row of `values` per text."""
        return list(values)

    @staticmethod
    def confidence(answer: Any) -> Iterable[float]:
        """Return the probabilities in an answer that show drift."""
        return ()

    @abstractmethod
    def usual(self, texts: Sequence[str]) -> AnyQuestion:
        """Return the default question of this kind of model about `texts`; long texts are truncated or split."""

    @abstractmethod
    def recording(self, given: Sequence[Any], *, top_k: int, truncate: bool) -> Dialogue[Records]:
        """Return the dialogue about texts, or pairs of texts, that gives a record of the answers to each.

        `top_k` answers for each text; `truncate`: cut long texts. A kind of model may ignore either.
        """

    def records(self, texts: Sequence[str], *, top_k: int, truncate: bool) -> Records:
        """Return the answer to each text as a plain record, as MLflow's models of every kind do.

        Raises:
            DataError: the model reads pairs, and a text is not a JSON object with both texts.
        """
        names = self.pair_names(reads_pairs=self.manifest.reads_pairs)
        given = [_pair(number, text, *names) for number, text in enumerate(texts)] if names else texts
        found = self.converse(self.recording(given, top_k=top_k, truncate=truncate))
        return [{name: _plain(answer) for name, answer in record.items()} for record in found]

    @classmethod
    def pair_names(cls, *, reads_pairs: bool) -> tuple[str, str] | None:
        """Return the names of the two texts that a model of this kind reads together; None: it reads one text."""
        return ("text", "text_pair") if reads_pairs else None

    @classmethod
    def examples(cls, manifest: Manifest) -> list[str]:
        """Return texts that `records` of the model with this manifest answers."""
        if names := cls.pair_names(reads_pairs=manifest.reads_pairs):
            return [json.dumps(dict(zip(names, ("What is returned?", "It returns a value."), strict=True)))] * 2
        return [f"returns {manifest.special_tokens.mask_token or 'a value'}", "text"]

    def _run(self, batch: TextBatch, *outputs: str) -> list[npt.NDArray[np.float32]]:
        return self._session.run(batch, *outputs)


class PerToken(OpenModel):
    """A model with an output for each token; the outputs at padding are cut off."""

    def split(self, batch: TextBatch, output: str, values: npt.NDArray[np.float32]) -> list[Rows]:
        return without_padding(batch, values)


def without_padding(batch: TextBatch, values: npt.NDArray[np.float32]) -> list[Rows]:
    """Return each text's part of an output for each token."""
    lengths_B = batch.attention_mask_BL.sum(axis=1).tolist()
    return [of_text[:length] for of_text, length in zip(values, lengths_B, strict=True)]


def likeliest(logits_V: npt.NDArray[np.float32], top_k: int) -> list[tuple[int, float]]:
    """Return the indices of the `top_k` largest logits (all if there are fewer) with their softmax, best first.

    Equal logits keep their order. The result is stable for logits of any size; the sum is computed in float64.
    """
    top_k = min(top_k, len(logits_V))
    places = np.flatnonzero(logits_V >= _bound(logits_V, top_k))
    best = places[np.argsort(-logits_V[places], kind="stable")[:top_k]]
    shifted_V = np.exp(logits_V - logits_V[best[0]])
    probabilities = shifted_V[best] / shifted_V.sum(dtype=np.float64)
    return list(zip(best.tolist(), probabilities.tolist(), strict=True))


def _bound(logits_V: npt.NDArray[np.float32], top_k: int) -> float:
    """Return a value that at least `top_k` logits reach, and few others.

    For a large vocabulary it is the `top_k`-th largest of the maxima of its parts, which takes a tenth of the time of a
    full sort.
    """
    num_parts = _PARTS_PER_ANSWER * top_k
    if len(logits_V) < 4 * num_parts:
        return float(np.partition(logits_V, -top_k)[-top_k])
    largest = np.maximum.reduceat(logits_V, np.arange(0, len(logits_V), len(logits_V) // num_parts))
    return float(np.partition(largest, -top_k)[-top_k])


def scored(logits_V: npt.NDArray[np.float32], top_k: int, function: ScoreFunction) -> list[tuple[int, float]]:
    """Return the indices of `likeliest` with scores by `function`."""
    best = likeliest(logits_V, top_k)
    if function == "softmax":
        return best
    logits = [(place, float(logits_V[place])) for place, _ in best]
    if function == "none":
        return logits
    return [(place, float(0.5 + 0.5 * np.tanh(0.5 * logit))) for place, logit in logits]


def softmax(logits_TC: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the probabilities of each row; stable for logits of any size."""
    shifted_TC = np.exp(logits_TC - logits_TC.max(axis=1, keepdims=True))
    probability_TC: npt.NDArray[np.float32] = shifted_TC / shifted_TC.sum(axis=1, keepdims=True)
    return probability_TC


def _pair(number: int, text: str, first: str, second: str) -> tuple[str, str]:
    try:
        asked = json.loads(text)
        return str(asked[first]), str(asked[second])
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise DataError(
            f"text {number} is not a JSON object with `{first}` and `{second}`",
            given=text[:60],
            expected=f'JSON such as {{"{first}": "…", "{second}": "…"}}',
            do=f"send each {first} and its {second} as one JSON object in a string",
        ) from error


def _plain(answer: Any) -> Any:
    """Return an answer as lists, dicts and numbers."""
    if isinstance(answer, np.ndarray):
        return answer.tolist()
    if is_dataclass(answer) and not isinstance(answer, type):
        return asdict(answer)
    return [_plain(one) for one in answer] if isinstance(answer, list) else answer


def check_top_k(top_k: int) -> None:
    if top_k < 1:
        raise DataError("`top_k` is too small", given=top_k, expected="at least 1", do="set `top_k` to 1 or more")
