"""Claim: the baseline finds the sentence that is about the question, and no answer if no sentence is."""

from clozeline.tasks.question_answering.contexts import nearest_sentences
from clozeline.tasks.question_answering.data import AnswerText, ContextQuestion

CONTEXT = "Ada wrote notes. Bob built a boat. Cleo kept bees."


def asked(question: str, answer: str | None) -> ContextQuestion:
    answers = () if answer is None else (AnswerText(answer, CONTEXT.index(answer)),)
    return ContextQuestion(question, CONTEXT, answers, "", "test")


ANSWERED = [asked("Who built a boat?", "Bob built a boat"), asked("Who kept bees?", "Cleo kept bees")]


def test_the_baseline_answers_with_the_sentence_most_similar_to_the_question() -> None:
    assert nearest_sentences(ANSWERED, [asked("Who wrote notes?", "Ada")]) == ["Ada wrote notes."]


def test_the_baseline_gives_no_answer_if_no_sentence_resembles_the_question() -> None:
    validation = [*ANSWERED, asked("Where is Rome?", None), asked("How far?", None)]
    assert nearest_sentences(validation, [asked("Why is rain wet?", None)]) == [""]
