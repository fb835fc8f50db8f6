"""Families and formats beside their owners: bench/results/models.json.

Scores and greedy tokens of every family against transformers; files of every family and format both ways; the law for every
family; damaged and hostile files. The cases are those of the tests.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from counted import ROOT, run_tests
from record import record

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "parity"), str(ROOT / "tests" / "unit")]
GREEDY = 64
HOSTILE = (
    "tests/unit/test_safetensors_refused.py",
    "tests/unit/test_model_folders_refused.py",
    "tests/unit/test_weights_damaged.py",
    "tests/unit/test_gguf_refused.py",
)


def scores() -> tuple[float, int]:
    """The largest difference over families, paddings, with and without a cache; families whose greedy tokens differ."""
    import families
    import test_families as parity
    import torch
    from llama_pair import batch, real_prompts

    from burnish.serve.generate import generate
    from burnish.serve.sampling import Sampling

    torch.set_grad_enabled(False)
    worst, different = 0.0, 0
    for name in families.FAMILIES:
        (ours, theirs), config = families.pair(name), families.config_of(name)
        for side in ("left", "right"):
            worst = max(worst, parity.padded_difference(ours, theirs, config, side))
            worst = max(worst, parity.cached_difference(ours, theirs, config, side))
        ids, mask = batch(config, "left")
        settings = {"do_sample": False, "max_new_tokens": GREEDY, "pad_token_id": 0, "eos_token_id": None}
        wanted = theirs.generate(ids, attention_mask=mask.long(), **settings)[:, ids.shape[1] :].tolist()
        different += generate(ours, real_prompts(ids, mask), Sampling(max_new_tokens=GREEDY)) != wanted
    return worst, different


def folders() -> int:
    """Families whose weights or config come back from transformers as something else, whole or in shards."""
    import families
    import test_family_files as files

    from burnish.export.safetensors import save_folder
    from burnish.load.model import load_folder

    wrong = 0
    for name in families.FAMILIES:
        for limit in (2**30, 30_000):
            with TemporaryDirectory() as scratch:
                config, place = families.config_of(name), Path(scratch)
                ours = families.random_decoder(config)
                save_folder(ours, config, place / "ours", shard_bytes=limit)
                families.theirs_of(place / "ours").save_pretrained(place / "theirs", max_shard_size=limit)
                back, read = load_folder(place / "theirs")
                wrong += not (read == config and files.same(back, ours))
    return wrong


def gguf_floats() -> int:
    """Tensors of GGUF files in floats that are not bit for bit those that were written, over kinds and formats."""
    import test_gguf_round_trip as gguf

    import gguf_models

    wrong = 0
    for kind in gguf_models.KINDS:
        for form in ("F32", "F16", "BF16"):
            with TemporaryDirectory() as scratch:
                wrong += len(gguf.differs(kind, Path(scratch), form))
    return wrong


if __name__ == "__main__":
    largest, greedy = scores()
    values = {
        "max_difference": largest,
        "greedy_different": greedy,
        "folders_different": folders(),
        "gguf_floats_different": gguf_floats(),
    }
    values["gguf_tests"], values["gguf_failed"] = run_tests(
        "gguf", "tests/parity/test_gguf_round_trip.py", "tests/parity/test_gguf_other_readers.py", "-m", "not sabotage"
    )
    values["law_tests"], values["law_different"] = run_tests(
        "family law", "tests/law/test_family_law.py", "tests/law/test_encoder_law.py", "-m", "not sabotage"
    )
    values["hostile_tests"], values["hostile_missed"] = run_tests("hostile", *HOSTILE, "-m", "not sabotage")
    print(record("models", values), values)
