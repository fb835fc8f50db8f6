"""What users of other engines met: scores that change with the company, right padding, a stop that ends every row."""

from __future__ import annotations

import pytest
import torch

from burnish.config import ModelConfig
from burnish.models.decoder import Decoder
from burnish.serve.engine import Engine, Limits, Output, Request
from burnish.serve.generate import complete, generate, left_padded, unpadded
from burnish.serve.runners.torch_runner import TorchRunner
from burnish.serve.sampling import Sampling

SHAPE = ModelConfig(
    vocab=101, hidden=48, ffn=80, layers=2, heads=6, kv_heads=2, head_dim=16, init_std=0.3, max_positions=128
)
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [11]]
LONG = [[(7 * k + row) % SHAPE.vocab for k in range(90)] for row in range(5)]
# Largest difference of a row's log probabilities alone and beside longer rows; in docs/serving.md.
APART = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 0.1}


def model(dtype: torch.dtype = torch.float32) -> Decoder:
    return Decoder(SHAPE, torch.Generator().manual_seed(0)).to(dtype).eval()


def letters(ids: list[int]) -> str:
    return "".join(chr(97 + i % 26) for i in ids)


def run(engine: Engine, asked: list[Request]) -> list[list[Output]]:
    found: list[list[Output]] = [[] for _ in asked]
    for request, outputs in zip(asked, found, strict=True):
        engine.submit(request, outputs.append)
    while engine.busy:
        engine.step()
    return found


def apart(dtype: torch.dtype) -> float:
    """Largest difference of all log probabilities of the first new token of each short prompt, alone and in company."""
    one, limits = model(dtype), Limits(pages=200, page=4, rows=16, tokens=600)
    asked = [Request(tuple(prompt), Sampling(max_new_tokens=1), top=SHAPE.vocab) for prompt in [*PROMPTS, *LONG]]
    together = run(Engine(TorchRunner(one, SHAPE), limits), asked)
    worst = 0.0
    for number in range(len(PROMPTS)):
        (alone,) = run(Engine(TorchRunner(one, SHAPE), limits), asked[number : number + 1])
        (_, mine), (_, theirs) = alone[0].logprobs[0], together[number][0].logprobs[0]
        worst = max(worst, *(abs(mine[token] - theirs[token]) for token in mine))
    return worst


@pytest.mark.parametrize("dtype", APART)
def test_flt_097_scores_beside_longer_rows_are_those_alone_within_what_is_documented(dtype: torch.dtype) -> None:
    assert apart(dtype) <= APART[dtype]


@pytest.mark.sabotage
def test_flt_097_notices_scores_that_depend_on_the_company(monkeypatch: pytest.MonkeyPatch) -> None:
    right = TorchRunner.scores

    def scores(self: TorchRunner, *given: object) -> torch.Tensor:
        found = right(self, *given)
        return found + 1e-3 * found[-1]

    monkeypatch.setattr(TorchRunner, "scores", scores)
    with pytest.raises(AssertionError):
        test_flt_097_scores_beside_longer_rows_are_those_alone_within_what_is_documented(torch.float32)


def test_flt_099_a_batch_padded_on_the_right_is_continued_like_one_padded_on_the_left() -> None:
    one, options = model(), Sampling(max_new_tokens=12)
    left, mask = left_padded(PROMPTS)
    right = torch.full_like(left, 50)
    for row, prompt in enumerate(PROMPTS):
        right[row, : len(prompt)] = torch.tensor(prompt)
    found = generate(one, unpadded(right, mask.flip(1)), options)
    assert found == generate(one, unpadded(left, mask), options) == generate(one, PROMPTS, options)


def test_flt_109_in_the_engine_a_stop_string_and_an_end_end_their_own_row() -> None:
    one, limits = model(), Limits(pages=100, page=4, rows=8, tokens=64)
    plain = complete(one, PROMPTS, Sampling(max_new_tokens=20), decode=letters)
    stop, end = plain[1].text[5:7], plain[0].ids[6]
    for options in (Sampling(max_new_tokens=20, stop=(stop,)), Sampling(max_new_tokens=20, eos=end)):
        expected = complete(one, PROMPTS, options, decode=letters)
        assert len({row.reason for row in expected}) == 2  # one row ends by itself, another goes on
        engine = Engine(TorchRunner(one, SHAPE), limits, letters)
        found = run(engine, [Request(tuple(prompt), options) for prompt in PROMPTS])
        assert [outputs[-1].reason for outputs in found] == [row.reason for row in expected]
        assert ["".join(output.text for output in outputs) for outputs in found] == [row.text for row in expected]
        assert engine.pages.free == engine.pages.count
