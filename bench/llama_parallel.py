"""llama.cpp decoding many sequences at once through its own batches, as its server's slots do: sequences that have their prompt
behind them take one token each, what is left of a batch goes to prompts, the oldest first."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 512  # tokens of a batch: llama.cpp's own default of a physical one


class Parallel:
    """One file with room for `slots` sequences of `room` positions."""

    def __init__(self, path: Path, threads: int, slots: int, room: int) -> None:
        import llama_cpp

        self.native = llama_cpp
        llama_cpp.llama_backend_init()
        llama_cpp.llama_log_set(_QUIET, ctypes.c_void_p(0))
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_seq_max = slots * room, slots
        options.n_batch = options.n_ubatch = BATCH
        options.n_threads = options.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        self.words = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(BATCH, 0, 1)

    def run(self, asked: list[tuple[list[int], int]]) -> list[list[int]]:
        """Continue each prompt greedily by its number of tokens."""
        self.native.llama_memory_clear(self.native.llama_get_memory(self.context), True)
        found: list[list[int]] = [[] for _ in asked]
        done = [0] * len(asked)
        while open_ := [k for k, (_, new) in enumerate(asked) if len(found[k]) < new]:
            last, count = {}, 0
            for k in sorted(open_, key=lambda k: not found[k]):
                prompt = asked[k][0]
                known = found[k][-1:] if found[k] else prompt[done[k] : done[k] + BATCH - count]
                for token in known[: BATCH - count]:
                    ends = done[k] + 1 == len(prompt) + len(found[k])
                    self._put(count, token, done[k], k, ends)
                    done[k] += 1
                    if ends:
                        last[k] = count
                    count += 1
            self.batch.n_tokens = count
            assert self.native.llama_decode(self.context, self.batch) == 0
            for k, row in last.items():
                found[k].append(self._likeliest(row))
        return found

    def _put(self, at: int, token: int, position: int, sequence: int, scored: bool) -> None:
        batch: Any = self.batch
        batch.token[at], batch.pos[at], batch.n_seq_id[at] = token, position, 1
        batch.seq_id[at][0], batch.logits[at] = sequence, scored

    def _likeliest(self, row: int) -> int:
        logits = self.native.llama_get_logits_ith(self.context, row)
        return int(np.ctypeslib.as_array(ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), (self.words,)).argmax())


def _quiet(level: int, text: bytes, data: Any) -> None:
    """llama.cpp's log goes nowhere."""


_QUIET = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(_quiet)
