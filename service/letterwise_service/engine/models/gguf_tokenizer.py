"""A tokenizer out of a GGUF file's metadata: byte-level BPE and SentencePiece BPE, as mlx-lm's wrapper.

Pure lookup and construction, on any thread. Knows nothing of tensors. What each `tokenizer.ggml.*` key means:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; the split patterns are the models' own, as published.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from ...errors import LoadFailed
from .gguf import GgufFile

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5
_SPACE = "▁"

# Letters with an optional lead, digits in runs of {digits}, punctuation, line ends, spaces: the GPT-4 family.
_MODERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _modern(digits: str) -> Any:
    pattern = Regex(_MODERN.format(digits=digits))
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _classic(*before: Any) -> Any:
    return pre_tokenizers.Sequence([*before, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])


# `tokenizer.ggml.pre`: how text is cut before merging. An unknown one is refused, since a wrong cut is silent.
_CUTS: dict[str, Callable[[], Any]] = {
    "gpt-2": _classic,
    "smollm": lambda: _classic(pre_tokenizers.Digits(individual_digits=True)),
    "llama-bpe": lambda: _modern("{1,3}"),
    "qwen2": lambda: _modern(""),
}
_SAME_CUT = {
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
    "deepseek-r1-qwen": "qwen2",
}


def tokenizer_of(file: GgufFile) -> Any:
    """mlx-lm's TokenizerWrapper for the file's vocabulary, special tokens and chat template. Raises LoadFailed."""
    try:
        return _tokenizer(file)
    except LoadFailed:
        raise
    except Exception as error:  # the tokenizers library raises plain Exception for a merge of unknown tokens
        raise LoadFailed(f"{file.path}: its tokenizer does not hold together ({error})") from error


def _tokenizer(file: GgufFile) -> Any:
    from mlx_lm.tokenizer_utils import (
        BPEStreamingDetokenizer,
        SPMStreamingDetokenizer,
        TokenizerWrapper,
    )

    kind = str(file.need("tokenizer.ggml.model"))
    detokenizer: Any
    if kind == "gpt2":
        core, detokenizer = _byte_level(file), BPEStreamingDetokenizer
    elif kind == "llama":
        core = _sentencepiece(file)
        detokenizer = functools.partial(SPMStreamingDetokenizer, trim_space=_adds_space(file))
    else:
        raise LoadFailed(f"{file.path} has a tokenizer of the kind {kind}; gpt2 (BPE) and llama (SPM) are read")
    core.add_tokens(_added_tokens(file))
    core.post_processor = _ends(file)
    return TokenizerWrapper(_wrapped(file, core), detokenizer, eos_token_ids=_end_ids(file))


def _byte_level(file: GgufFile) -> Tokenizer:
    pre = str(file.metadata.get("tokenizer.ggml.pre", "missing"))
    cut = _CUTS.get(_SAME_CUT.get(pre, pre))
    if cut is None:
        raise LoadFailed(f"{file.path} has the pre-tokenizer {pre}, which is not known; known: {', '.join(_CUTS)}")
    merges = [(left, right) for left, _, right in (m.partition(" ") for m in file.texts("tokenizer.ggml.merges"))]
    whole_words = _SAME_CUT.get(pre, pre) == "llama-bpe"
    core = Tokenizer(models.BPE(_vocabulary(file), merges, ignore_merges=whole_words))
    core.pre_tokenizer = cut()
    core.decoder = decoders.ByteLevel()
    return core


def _sentencepiece(file: GgufFile) -> Tokenizer:
    """SentencePiece's BPE joins the neighbours whose union scores highest: a merge list ordered by that score."""
    tokens, types = file.texts("tokenizer.ggml.tokens"), _types(file)
    unknown = next(
        (token for token, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN),
        None,
    )
    core = Tokenizer(
        models.BPE(
            _vocabulary(file),
            _merges(file, tokens, types),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    steps: list[Any] = [normalizers.Replace(" ", _SPACE)]
    endings: list[Any] = [
        decoders.Replace(_SPACE, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if _adds_space(file):
        steps.insert(0, normalizers.Prepend(_SPACE))
        endings.append(decoders.Strip(" ", 1, 0))
    core.normalizer = normalizers.Sequence(steps)
    core.decoder = decoders.Sequence(endings)
    return core


def _merges(file: GgufFile, tokens: Sequence[str], types: Sequence[int]) -> list[tuple[str, str]]:
    scores = file.need("tokenizer.ggml.scores")
    pieces = {token: scores[i] for i, token in enumerate(tokens) if types[i] in (_NORMAL, _USER_DEFINED, _UNUSED)}
    found = [
        (-score, len(token), token[:cut], token[cut:])
        for token, score in pieces.items()
        for cut in range(1, len(token))
        if token[:cut] in pieces and token[cut:] in pieces
    ]
    return [(left, right) for _, _, left, right in sorted(found, key=lambda row: row[:2])]


def _vocabulary(file: GgufFile) -> dict[str, int]:
    return {token: index for index, token in enumerate(file.texts("tokenizer.ggml.tokens"))}


def _types(file: GgufFile) -> list[int]:
    tokens = file.texts("tokenizer.ggml.tokens")
    return list(file.metadata.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens))


def _adds_space(file: GgufFile) -> bool:
    return bool(file.metadata.get("tokenizer.ggml.add_space_prefix", True))


def _added_tokens(file: GgufFile) -> list[AddedToken]:
    """Control tokens are special; user-defined ones are matched in text as they stand."""
    return [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(file.texts("tokenizer.ggml.tokens"), _types(file), strict=True)
        if kind in (_CONTROL, _USER_DEFINED)
    ]


def _token(file: GgufFile, role: str) -> tuple[str, int] | None:
    index = file.metadata.get(f"tokenizer.ggml.{role}_token_id")
    tokens = file.texts("tokenizer.ggml.tokens")
    if index is None or not 0 <= int(index) < len(tokens):
        return None
    return str(tokens[index]), int(index)


def _ends(file: GgufFile) -> Any:
    """The post-processor that adds BOS and EOS where the file asks for them."""
    default = file.metadata.get("tokenizer.ggml.model") == "llama" or _whole_pre(file) == "llama-bpe"
    bos = _token(file, "bos") if file.metadata.get("tokenizer.ggml.add_bos_token", default) else None
    eos = _token(file, "eos") if file.metadata.get("tokenizer.ggml.add_eos_token", False) else None
    around = ([bos[0]] if bos else []) + ["$A"] + ([eos[0]] if eos else [])
    return processors.TemplateProcessing(single=around, special_tokens=[pair for pair in (bos, eos) if pair])


def _whole_pre(file: GgufFile) -> str:
    pre = str(file.metadata.get("tokenizer.ggml.pre", ""))
    return _SAME_CUT.get(pre, pre)


def _wrapped(file: GgufFile, core: Tokenizer) -> Any:
    from transformers import PreTrainedTokenizerFast

    build: Any = PreTrainedTokenizerFast
    roles = {
        "bos_token": "bos",
        "eos_token": "eos",
        "unk_token": "unknown",
        "pad_token": "padding",
    }
    special = {name: found[0] for name, role in roles.items() if (found := _token(file, role))}
    tokenizer = build(tokenizer_object=core, clean_up_tokenization_spaces=False, **special)
    tokenizer.chat_template = file.metadata.get("tokenizer.chat_template")
    return tokenizer


def _end_ids(file: GgufFile) -> list[int]:
    found = (_token(file, role) for role in ("eos", "eot", "eom"))
    return [pair[1] for pair in found if pair]
