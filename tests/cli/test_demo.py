"""A lesson teaches: its questions are real text, and the answers are better after training than before."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from clozeline.cli.lesson import TOKENIZER, TOKENS, short, teach
from clozeline.encoder.families.layout import LanguageHead
from clozeline.language.objectives import Split
from clozeline.language.shards import TokenShards
from clozeline.language.spelling import Spelling
from clozeline.params.pretraining import PretrainParams
from clozeline.pretraining.watching import Examiner
from clozeline.records.reading.tokens import INFO_NAME, TokensInfo
from tests.conftest import PROJECT

# 60 words of letters only; the words of the tiny language contain digits.
WORDS = [f"{first}{second}{last}" for first in "bdfg" for second in "aeiou" for last in ("lden", "rden", "sten")]


@pytest.fixture
def corpus(tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path) -> Path:
    """Project of the tiny language, where each word has a fixed successor, with words that may become questions."""
    file = tiny_tokenizer / "tokenizer.json"
    text = file.read_text(encoding="utf-8")
    for number in range(5, 64):
        text = text.replace(f'"w{number}":', f'"{WORDS[number - 5]}":')
    file.write_text(text, encoding="utf-8")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    info = TokensInfo.of_folder(tiny_tokens).model_copy(update={"tokenizer_sha256": digest})
    info.write(tiny_tokens / INFO_NAME)
    for place, folder in ((TOKENS, tiny_tokens), (TOKENIZER, tiny_tokenizer)):
        (tmp_path / "project" / place).parent.mkdir(parents=True)
        (tmp_path / "project" / place).symlink_to(folder)
    return tmp_path / "project"


def examiner(corpus: Path, objective: LanguageHead) -> Examiner:
    split = Split.open(TokenShards.open(corpus / TOKENS, "validation"), 64)
    tokenizer = Tokenizer.from_file(str(corpus / TOKENIZER / "tokenizer.json"))
    is_frequent_V = np.ones(split.vocabulary.size, dtype=bool)
    return Examiner(split, tokenizer, Spelling.open(corpus / TOKENIZER), objective, is_frequent_V)


@pytest.mark.parametrize("objective", ["mlm", "clm"])
def test_a_question_is_held_out_text_that_lacks_the_right_word(corpus: Path, objective: LanguageHead) -> None:
    """Masked, or for a causal model at its end; in the tiny language each word has a fixed successor."""
    asked = examiner(corpus, objective).questions(3)
    assert len(asked) == 3
    for question in asked:
        words = question.text.split()
        place = words.index("[MASK]" if objective == "mlm" else "…")
        assert WORDS[(WORDS.index(words[place - 1]) + 1) % 59] == question.truth
        if objective == "mlm":
            assert question.input_ids[question.slot] == 4
            assert (question.input_ids[0], question.input_ids[-1]) == (2, 3)
        else:
            assert (place, question.slot) == (len(words) - 1, len(question.input_ids) - 1)


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "steps"), [("mlm", 200), ("clm", 60)])
def test_a_lesson_lowers_the_loss_and_gets_the_answers_right(
    corpus: Path, tiny_pretraining: PretrainParams, tmp_path: Path, objective: LanguageHead, steps: int
) -> None:
    params = short(tiny_pretraining, objective, steps).model_copy(update={"batch_tokens": 512})
    learned = teach(params, corpus, 1, tmp_path / "work", [])
    assert learned.loss_before == pytest.approx(np.log(64), abs=0.1)
    assert learned.loss_after < learned.unigram_entropy / 2
    for question, answer in zip(learned.questions, learned.after, strict=True):
        assert answer.guesses[0][0] == question.truth


def test_a_lesson_is_deterministic_and_asks_only_for_tokens_with_the_least_share_of_the_text(
    corpus: Path, tiny_pretraining: PretrainParams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = short(tiny_pretraining.model_copy(update={"start": "somewhere", "tokens": 10**9}), "clm", steps=5)
    told = (params.model.size, params.start, params.steps, params.tokens, params.objective)
    assert told == ("mini", None, 5, None, "clm"), "the smallest model for any project"
    params = params.model_copy(update={"batch_tokens": 256})
    lessons = [teach(params, corpus, 1, tmp_path / str(turn), []) for turn in range(2)]
    assert lessons[0] == lessons[1]
    assert lessons[0].questions
    for answer in lessons[0].after:
        assert [share for _, share in answer.guesses] == sorted((share for _, share in answer.guesses), reverse=True)
        assert len(answer.continuation.split()) <= 12
    monkeypatch.setattr("clozeline.cli.lesson._LEAST_SHARE", 0.5)
    assert teach(params, corpus, 1, tmp_path / "work", []).questions == ()


def test_a_few_steps_run_in_a_fresh_project(tmp_path: Path) -> None:
    """CI runs the full demo in both modes."""
    shutil.copy(PROJECT / "params.yaml", tmp_path)
    command = [sys.executable, "-m", "clozeline", "demo", "--mode", "clm", "--steps", "10"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "docstrings of the standard library" in done.stdout
    assert done.stdout.count("(right: ") == done.stdout.count("continues after:") == 4
    assert [path.name for path in tmp_path.iterdir()] == ["params.yaml"]
