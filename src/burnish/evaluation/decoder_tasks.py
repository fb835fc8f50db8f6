"""Decoder tasks: the likeliest of several choices, and greedy text held against an answer."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import torch

from burnish.config import ModelConfig
from burnish.data.table_file import text_of_row
from burnish.data.text import check_unicode
from burnish.data.tokenizer import Tokenizer
from burnish.errors import UserError
from burnish.evaluation.choices import continuation, log_likelihoods, taken
from burnish.evaluation.task_score import Job, TaskScore
from burnish.load.model import config_of, load_model
from burnish.models.decoder import Decoder
from burnish.serve.generate import complete
from burnish.serve.sampling import Sampling


def judge_choices(job: Job) -> TaskScore:
    """The choice with the likeliest tokens after the prompt, in all and a byte."""
    model, config, tokenizer = _decoder(job)
    first = config.eos if config.bos is None else config.bos
    asked, texts = [], []
    for where, row in job.rows:
        prompt, choices = text_of_row(row, "prompt", where), _choices(row, where)
        asked.append((choices, _answer(row["answer"], choices, where)))
        for choice in choices:
            text = continuation(tokenizer, prompt, choice, first, where)
            if len(text.ids) - 1 > config.max_positions:
                raise UserError(
                    f"{where}: prompt and choice have {len(text.ids)} tokens, the model {config.max_positions} positions"
                )
            texts.append(text)
    scores = log_likelihoods(model, texts, job.batch, lambda done: job.done(done, len(texts)))
    if not all(map(math.isfinite, scores)):
        raise UserError(f"{job.checkpoint.where}: the model's scores are not finite")
    right: list[bool] = []
    right_by_byte = at = 0
    for choices, answer in asked:
        best, best_by_byte = taken(scores[at : at + len(choices)], choices)
        right.append(best == answer)
        right_by_byte += best_by_byte == answer
        at += len(choices)
    about = f"likelihood of each choice after its prompt: {len(asked):,} questions, {len(texts):,} choices"
    scores_of = {"acc": sum(right) / len(asked), "acc_norm": right_by_byte / len(asked)}
    return TaskScore(about, len(asked), scores_of, right=tuple(right))


def judge_answers(job: Job) -> TaskScore:
    """Greedy text up to the end of its line, which has to be the answer but for white space around it."""
    model, config, tokenizer = _decoder(job)
    asked = [(where, text_of_row(row, "prompt", where), text_of_row(row, "answer", where)) for where, row in job.rows]
    prompts = [tokenizer.encode_prompt(prompt) for _, prompt, _ in asked]
    for (where, _, _), prompt in zip(asked, prompts, strict=True):
        if not 0 < len(prompt) <= config.max_positions - job.new_tokens:
            room = config.max_positions - job.new_tokens
            raise UserError(f"{where}: a prompt of {len(prompt)} tokens; 1 to {room} leave room for an answer")
    lines = any("\n" in answer.strip() for _, _, answer in asked)
    options = Sampling(max_new_tokens=job.new_tokens, eos=config.eos, stop=() if lines else ("\n",))
    order = sorted(range(len(asked)), key=lambda k: -len(prompts[k]))
    right = [False] * len(asked)
    for at in range(0, len(order), job.batch):
        rows = order[at : at + job.batch]
        done = complete(model, [prompts[k] for k in rows], options, decode=tokenizer.decode)
        for k, one in zip(rows, done, strict=True):
            right[k] = one.text.strip() == asked[k][2].strip()
        job.done(at + len(rows), len(order))
    until = f"{job.new_tokens} tokens" if lines else f"the end of its line, {job.new_tokens} tokens at most"
    about = f"greedy text to {until} against the answer: {len(asked):,} prompts"
    return TaskScore(about, len(asked), {"exact_match": sum(right) / len(asked)}, right=tuple(right))


def _decoder(job: Job) -> tuple[Decoder, ModelConfig, Tokenizer]:
    files = job.checkpoint.tokenizer
    if files is None:
        raise UserError(f"{job.checkpoint.where}: holds no tokenizer, so no text can be read with it")
    dtype = torch.float32 if job.device == "cpu" else None
    if job.model is not None:
        model, config = job.model, config_of(job.checkpoint)
    else:
        model, config = load_model(job.checkpoint, dtype=dtype, device=job.device)
    tokenizer = Tokenizer.read(files.tokenizer, job.checkpoint.where, config.eos, files.settings or None)
    tokenizer.check_vocab(config.vocab)
    return model.eval(), config, tokenizer


def _choices(row: Mapping[str, Any], where: str) -> list[str]:
    """A list of texts; in a CSV cell a JSON list."""
    given = row["choices"]
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            given = None
    if not isinstance(given, list) or len(given) < 2 or not all(isinstance(choice, str) for choice in given):
        raise UserError(
            f'{where}: choices {str(row["choices"])[:40]!r}; a list of two or more texts is needed: ["a", "b"]'
        )
    if twice := next((choice for k, choice in enumerate(given) if choice in given[:k]), None):
        raise UserError(f"{where}: the choice {twice[:40]!r} stands twice")
    for choice in given:
        check_unicode(choice, where)
    return list(given)


def _answer(answer: object, choices: list[str], where: str) -> int:
    """The right choice by its text, else by its number from 0."""
    if isinstance(answer, str) and answer in choices:
        return choices.index(answer)
    number = int(answer) if isinstance(answer, str) and answer.isdecimal() else answer
    if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < len(choices):
        return number
    raise UserError(
        f"{where}: answer {str(answer)[:40]!r} is no choice, nor the number of one: 0 to {len(choices) - 1}"
    )
