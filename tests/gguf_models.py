"""Tiny models of every architecture that GGUF files are read and written for, as transformers makes and saves them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from burnish.gguf_files.settings import Field
from burnish.load.checkpoint import Checkpoint, StoredTensor, TokenizerFiles

VOCAB = 300
TEMPLATE = "{% for m in messages %}<|user|>{{ m.content }}\n{% endfor %}"
_DECODER = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": None,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
_EXPERTS = {"num_experts_per_tok": 2, "router_aux_loss_coef": 0.0}

# name -> (class of the configuration, what it has beside the sizes)
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama tied": ("LlamaConfig", {"tie_word_embeddings": True}),
    "llama with biases": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama wide heads": ("LlamaConfig", {"head_dim": 32}),
    "llama odd width": ("LlamaConfig", {"hidden_size": 72, "head_dim": 18}),
    "llama3 rope": ("LlamaConfig", {"rope_parameters": {"rope_theta": 5000.0, **_LLAMA3}}),
    "linear rope": ("LlamaConfig", {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0}}),
    "yarn rope": ("Qwen2Config", {"rope_parameters": {"rope_theta": 1e4, **_YARN}}),
    "mistral": ("MistralConfig", {"sliding_window": 16, "head_dim": 16}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "sliding_window": None, **_EXPERTS}),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {"head_dim": 32}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {"head_dim": 32, "num_experts": 4, "moe_intermediate_size": 32, "norm_topk_prob": True, **_EXPERTS},
    ),
    "gpt2": ("GPT2Config", {"n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 4}),
}


def model(kind: str, folder: Path, **more: Any) -> tuple[torch.nn.Module, Checkpoint]:
    """A model with random weights, biases and norms too, and the checkpoint that transformers saves of it.

    `more`: sizes other than those of `KINDS`.
    """
    name, own = KINDS[kind]
    sizes = {"vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": 0} if name == "GPT2Config" else _DECODER
    config = getattr(transformers, name)(**(sizes | own | more))
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.2 if parameter.ndim > 1 else 0.1) + (parameter.ndim == 1))
    made.save_pretrained(folder)
    return made, checkpoint(folder, byte_level())


def checkpoint(folder: Path, tokenizer: TokenizerFiles | None) -> Checkpoint:
    """What a folder with one safetensors file holds."""
    file = folder / "model.safetensors"
    tensors = {
        name: StoredTensor(tuple(t.shape), str(t.dtype).removeprefix("torch."), t.nbytes, file, t.clone)
        for name, t in load_file(file).items()
    }
    return Checkpoint(str(folder), "safetensors", json.loads((folder / "config.json").read_text()), tensors, tokenizer)


@cache
def byte_level(cut: str = "gpt-2") -> TokenizerFiles:
    """A byte-level tokenizer of fewer tokens than the models have rows, with a special and an ordinary added token."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=280,
        special_tokens=["<|endoftext|>", "<|user|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    inner.train_from_iterator(["the cat sat on the mat and the hat"] * 9, trainer)
    inner.add_tokens(["<think>"])
    content = json.loads(inner.to_str())
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
    }
    return TokenizerFiles(json.dumps(content), settings, TEMPLATE)


def written(path: Path, fields: list[Field], tensors: dict[str, Any], arch: str = "llama") -> Path:
    """A GGUF file of just these fields and float32 tensors, good or bad, by the gguf package."""
    from gguf import GGUFValueType, GGUFWriter

    types = {"u32": "UINT32", "i32": "INT32", "f32": "FLOAT32", "bool": "BOOL", "string": "STRING"}
    writer = GGUFWriter(None, arch)
    for key, kind, value in fields:
        one = GGUFValueType[types[kind.strip("[]")]]
        if kind.startswith("["):
            writer.add_key_value(key, value, GGUFValueType.ARRAY, one)
        else:
            writer.add_key_value(key, value, one)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
