"""GGUF files: weights against the `gguf` package, models against a plain numpy forward, tokenizers, bad files."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFReader, GGUFWriter, RopeScalingType, dequantize

from letterwise_service.engine.backend import mx
from letterwise_service.engine.models import embedded
from letterwise_service.engine.models.gguf import GgufFile
from letterwise_service.engine.models.gguf_model import build, build_packed, configuration, stays_packed
from letterwise_service.engine.models.gguf_tokenizer import tokenizer_of
from letterwise_service.errors import LoadFailed
from tests.engine.models import gguf_files
from tests.engine.models.gguf_files import BASE, EPSILON, HEAD_DIM, HEADS, KV_HEADS, LAYERS, TOKENS, finish, tiny_gguf
from tests.tiny import SPECIALS

Array = np.ndarray[Any, Any]

KINDS = [
    *(Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0),
    *(Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ4_NL, Kind.IQ4_XS, Kind.IQ2_XS, Kind.IQ3_S),
    *(Kind.TQ1_0, Kind.TQ2_0, Kind.MXFP4),
]


RECORDED = {
    "Hello, world!": [19556, 28, 905, 17],
    "in 2024: 3.14159 + 1,000": [
        254,
        216,
        34,
        32,
        34,
        36,
        42,
        216,
        35,
        30,
        33,
        36,
        33,
        37,
        41,
        1232,
        216,
        33,
        28,
        32,
        32,
        32,
    ],
    "naïve café — “quotes”": [3546, 46494, 37366, 1841, 619, 385, 2346, 573],
    "東京都123番地": [30679, 126, 16736, 122, 180, 38466, 33, 34, 35, 178, 239, 120, 23896, 125],
    "a🙂b 👨‍👩‍👧": [81, 10813, 38887, 82, 15107, 235, 118, 321, 231, 10813, 235, 119, 321, 231, 10813, 235, 117],
    "  two  spaces\n\n\tand a tab ": [216, 827, 216, 5600, 1116, 197, 397, 253, 10147, 216],
    "def f(x):\n    return x+1\n": [1604, 275, 24, 104, 727, 472, 1003, 1792, 27, 33, 198],
    "<|im_start|>user\nhi<|im_end|>\n": [1, 4093, 198, 6004, 2, 198],
    "A) yes: I'm sure we'll": [49, 25, 9805, 42, 339, 5248, 2090, 392, 3060],
}
RECORDED_PROMPT = [
    1,
    9690,
    198,
    2683,
    359,
    253,
    5356,
    5646,
    11173,
    3365,
    3511,
    308,
    34519,
    28,
    7018,
    411,
    407,
    19712,
    8182,
    2,
    198,
    1,
    4093,
    198,
    10024,
    42,
    198,
    504,
    35598,
    6612,
    6792,
    284,
    260,
    7742,
    5988,
    253,
    37393,
    1841,
    216,
    35,
    2009,
    3008,
    28,
    1686,
    216,
    36,
    40,
    34,
    33,
    35,
    30,
    17097,
    241,
    115,
    40993,
    10813,
    38887,
    198,
    198,
    17872,
    42,
    1431,
    260,
    7742,
    12575,
    47,
    198,
    23084,
    42,
    198,
    49,
    25,
    9805,
    198,
    50,
    25,
    787,
    198,
    198,
    21350,
    351,
    260,
    4386,
    282,
    260,
    1450,
    4622,
    805,
    30,
    2,
    198,
    1,
    520,
    9531,
    198,
]
RECORDED_NEXT = [49, 50, 504, 51, 2683, 57, 5230, 10539, 33, 52]


def published(path: Path) -> dict[str, Array]:
    """Every tensor as the `gguf` package's own reader and decoder give it."""
    return {
        t.name: dequantize(t.data, t.tensor_type).reshape(tuple(int(n) for n in reversed(t.shape))).astype(np.float32)
        for t in GGUFReader(str(path)).tensors
    }


def loaded(path: Path) -> Any:
    file = GgufFile(path)
    return build(file, configuration(file), dtype=mx.float32)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.name))
def test_gguf_weights_equal_the_published_decoder_bit_for_bit(tmp_path: Path, kind: Kind) -> None:
    """Each tensor of each quantization type reaches the model unchanged; q and k with their halves put apart."""
    path = tiny_gguf(tmp_path / "m.gguf", kind=kind)
    model, judge = loaded(path), published(path)
    attention = model.layers[1].self_attn
    assert np.isfinite(judge["blk.1.attn_v.weight"]).all()
    assert np.array_equal(np.array(attention.v_proj.weight), judge["blk.1.attn_v.weight"])
    assert np.array_equal(np.array(model.lm_head.weight), judge["output.weight"])
    assert np.array_equal(np.array(model.model.embed_tokens.weight), judge["token_embd.weight"])
    for name, heads in (("q", HEADS), ("k", KV_HEADS)):
        rows, wanted = np.array(attention[f"{name}_proj"].weight), judge[f"blk.1.attn_{name}.weight"]
        for head in range(heads):
            for pair in range(HEAD_DIM // 2):
                at = head * HEAD_DIM
                assert np.array_equal(rows[at + pair], wanted[at + 2 * pair])
                assert np.array_equal(rows[at + HEAD_DIM // 2 + pair], wanted[at + 2 * pair + 1])


def plain_logits(
    weights: dict[str, Array], ids: list[int], architecture: str, scale: float = 1.0, factors: Array | None = None
) -> Array:
    """A decoder written out in float64 on GGUF's own tensors and conventions: the judge of names and rotations."""
    w = {name: values.astype(np.float64) for name, values in weights.items()}
    steps = np.arange(HEAD_DIM // 2)
    angles = np.outer(np.arange(len(ids)), BASE ** (-2 * steps / HEAD_DIM) / (1 if factors is None else factors))

    def norm(x: Array, name: str) -> Array:
        return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * w[name])

    def rotated(x: Array) -> Array:  # (tokens, heads, HEAD_DIM)
        cos, sin = np.cos(angles * scale)[:, None], np.sin(angles * scale)[:, None]
        if architecture == "llama":  # neighbours turn together
            a, b = x[..., 0::2], x[..., 1::2]
            return np.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(x.shape)
        a, b = np.split(x, 2, -1)
        return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

    def projected(x: Array, layer: str, part: str) -> Array:
        y = x @ w[f"{layer}attn_{part}.weight"].T + w.get(f"{layer}attn_{part}.bias", 0.0)
        y = y.reshape(len(ids), -1, HEAD_DIM)
        return norm(y, f"{layer}attn_{part}_norm.weight") if f"{layer}attn_{part}_norm.weight" in w else y

    x = w["token_embd.weight"][ids]
    for layer in (f"blk.{i}." for i in range(LAYERS)):
        h = norm(x, layer + "attn_norm.weight")
        q, k, v = rotated(projected(h, layer, "q")), rotated(projected(h, layer, "k")), projected(h, layer, "v")
        k, v = np.repeat(k, HEADS // KV_HEADS, 1), np.repeat(v, HEADS // KV_HEADS, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(HEAD_DIM) + np.triu(np.full((len(ids),) * 2, -1e30), 1)
        share = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hqk,khd->qhd", share / share.sum(-1, keepdims=True), v).reshape(len(ids), -1)
        x = x + mixed @ w[layer + "attn_output.weight"].T
        h = norm(x, layer + "ffn_norm.weight")
        gate, up = h @ w[layer + "ffn_gate.weight"].T, h @ w[layer + "ffn_up.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[layer + "ffn_down.weight"].T
    head = w.get("output.weight", w["token_embd.weight"])
    return np.asarray(norm(x, "output_norm.weight") @ head.T)


FACTORS: Any = np.linspace(1.0, 8.0, HEAD_DIM // 2)


@pytest.mark.parametrize(
    ("options", "judged"),
    [
        ({}, {}),
        ({"tied": True, "kind": Kind.Q5_0}, {}),
        ({"linear": 4.0}, {"scale": 0.25}),
        ({"rope_factors": FACTORS}, {"factors": FACTORS}),
        ({"architecture": "qwen2"}, {}),
        ({"architecture": "qwen3", "tied": True, "kind": Kind.BF16}, {}),
    ],
    ids=["llama", "tied", "linear", "factors", "qwen2", "qwen3"],
)
def test_gguf_model_gives_the_logits_of_a_plain_forward(
    tmp_path: Path, options: dict[str, Any], judged: dict[str, Any]
) -> None:
    """Names, head order, rotation and scaling are right: the logits are those of the mathematics written out."""
    path = tiny_gguf(tmp_path / "m.gguf", **options)
    ids = [(7 * i * i + 3 * i) % len(TOKENS) for i in range(40)]
    got = np.array(loaded(path)(mx.array([ids]))[0])
    wanted = plain_logits(published(path), ids, options.get("architecture", "llama"), **judged)
    assert np.abs(got - wanted).max() < 2e-4 * np.abs(wanted).max()


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0], ids=lambda kind: str(kind.name))
def test_gguf_packed_model_gives_the_logits_of_the_dequantized(tmp_path: Path, kind: Kind) -> None:
    """The form kept on Metal and CUDA, weights as packed, computes what the dequantized form computes."""
    file = GgufFile(tiny_gguf(tmp_path / "m.gguf", kind=kind, rope_factors=FACTORS))
    assert stays_packed(file)
    config, ids = configuration(file), mx.array([[5, 80, 256, 7, 99]])
    packed = build_packed(file, config, dtype=mx.float32)
    wanted = build(file, config, dtype=mx.float32)(ids)
    assert "scales" in packed.layers[0].self_attn.q_proj
    assert float(mx.abs(packed(ids) - wanted).max()) < 1e-3 * float(mx.abs(wanted).max())


def test_gguf_packed_form_is_not_claimed_for_other_types(tmp_path: Path) -> None:
    """A file with one type that mlx cannot compute with is dequantized instead."""
    assert not stays_packed(GgufFile(tiny_gguf(tmp_path / "m.gguf", kind=Kind.Q5_1)))


def model_and_tokenizer(file: GgufFile) -> tuple[Any, Any]:
    return build(file, configuration(file), dtype=mx.float32), tokenizer_of(file)


def cuts(tmp_path: Path, pre: str, text: str) -> list[str]:
    core: Any = tokenizer_of(GgufFile(tiny_gguf(tmp_path / "m.gguf", pre=pre))).backend_tokenizer
    return [text[start:end] for _, (start, end) in core.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("pre", "wanted"),
    [
        ("gpt-2", ["It", "'s", " 12345", " I", "'", "LL", "  ", " (", "ab", ")", "\n", "\n", "x"]),
        ("smollm", ["It", "'s", " ", "1", "2", "3", "4", "5", " I", "'", "LL", "  ", " (", "ab", ")", "\n", "\n", "x"]),
        ("llama-bpe", ["It", "'s", " ", "123", "45", " I", "'LL", "  ", " (", "ab", ")\n\n", "x"]),
        ("llama3", ["It", "'s", " ", "123", "45", " I", "'LL", "  ", " (", "ab", ")\n\n", "x"]),
        ("qwen2", ["It", "'s", " ", "1", "2", "3", "4", "5", " I", "'LL", "  ", " (", "ab", ")\n\n", "x"]),
    ],
)
def test_gguf_tokenizer_cuts_text_as_its_pre_tokenizer_says(tmp_path: Path, pre: str, wanted: list[str]) -> None:
    """Digits, contractions, spaces and line ends are cut by the named rule (checked against llama.cpp)."""
    assert cuts(tmp_path, pre, "It's 12345 I'LL   (ab)\n\nx") == wanted


def test_gguf_tokenizer_merges_keeps_specials_and_round_trips(tmp_path: Path) -> None:
    """Merges apply, a special token is one id and ends a reply, any text comes back as it was."""
    tokenizer = tokenizer_of(GgufFile(tiny_gguf(tmp_path / "m.gguf")))
    assert tokenizer.encode("abcab") == [TOKENS.index("abc"), TOKENS.index("ab")]
    assert tokenizer.encode(SPECIALS[2]) == [TOKENS.index(SPECIALS[2])]
    assert tokenizer.eos_token_ids == {TOKENS.index(SPECIALS[2])}
    text = "naïve\tcafé  日本🙂\r\n\x00 end "
    assert tokenizer.decode(tokenizer.encode(text)) == text
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "abc"}], add_generation_prompt=True)
    assert tokenizer.decode(prompt) == "<|im_start|>user\nabc<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(("flag", "added"), [(True, [256]), (False, []), (None, [])])
def test_gguf_tokenizer_adds_bos_where_the_file_says_so(tmp_path: Path, flag: bool | None, added: list[int]) -> None:
    """The add_bos_token flag is followed; without one, byte-level BPE adds none."""

    def change(writer: GGUFWriter) -> None:
        if flag is not None:
            writer.add_add_bos_token(flag)

    tokenizer = tokenizer_of(GgufFile(tiny_gguf(tmp_path / "m.gguf", change=change)))
    assert tokenizer.encode("ab") == [*added, TOKENS.index("ab")]
    assert tokenizer.encode("ab", add_special_tokens=False) == [TOKENS.index("ab")]


PIECES = ["▁", "t", "h", "e", "a", "n", "c", "▁t", "he", "▁the", "an", "▁a", "▁an", "th", "▁th", "en", "can", "ca"]


def sentencepiece_gguf(path: Path, *, add_space: bool = True) -> tuple[Path, dict[str, float]]:
    """A SentencePiece vocabulary with byte fallback; the scores fall with each piece's place."""
    scores = {piece: -float(place) for place, piece in enumerate(reversed(PIECES))}
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    writer = GGUFWriter(str(path), "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [scores[piece] for piece in PIECES])
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * len(PIECES)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_space_prefix(add_space)
    return finish(writer, path), scores


def joined_by_score(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's rule done plainly: join the neighbours whose union scores highest, the first of equals."""
    pieces = list(text)
    while True:
        unions = [(scores[a + b], -i) for i, (a, b) in enumerate(pairwise(pieces)) if a + b in scores]
        if not unions:
            return pieces
        at = -max(unions)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]


@pytest.mark.parametrize("add_space", [True, False])
def test_gguf_sentencepiece_joins_by_score(tmp_path: Path, add_space: bool) -> None:
    """On random texts of its letters, the pieces are those of the plain rule, and the text comes back."""
    path, scores = sentencepiece_gguf(tmp_path / "m.gguf", add_space=add_space)
    tokenizer = tokenizer_of(GgufFile(path))
    random = np.random.default_rng(11)
    for _ in range(200):
        text = "".join(random.choice(list("thean c"), size=int(random.integers(1, 24))))
        ids = tokenizer.encode(text, add_special_tokens=False)
        marked = ("▁" if add_space else "") + text.replace(" ", "▁")
        assert tokenizer.convert_ids_to_tokens(ids) == joined_by_score(marked, scores)
        assert tokenizer.decode(ids) == text


def test_gguf_sentencepiece_falls_back_to_bytes_and_adds_bos(tmp_path: Path) -> None:
    """A character outside the vocabulary becomes its bytes and comes back; BOS is the default of this kind."""
    path, _ = sentencepiece_gguf(tmp_path / "m.gguf")
    tokenizer = tokenizer_of(GgufFile(path))
    ids = tokenizer.encode("the é🙂")
    assert ids[0] == 1
    assert tokenizer.convert_ids_to_tokens(ids)[2:] == ["▁", *(f"<0x{byte:02X}>" for byte in "é🙂".encode())]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the é🙂"


def _experts(writer: GGUFWriter) -> None:
    writer.add_expert_count(8)


def _yarn(writer: GGUFWriter) -> None:
    writer.add_rope_scaling_type(RopeScalingType.YARN)


def _partial_rotation(writer: GGUFWriter) -> None:
    writer.add_rope_dimension_count(16)


def _unknown_tensor(writer: GGUFWriter) -> None:
    writer.add_tensor("blk.0.attn_mystery.weight", np.zeros(4, dtype=np.float32))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"architecture": "gptneox"}, "the architecture gptneox"),
        ({"change": _experts}, "mixture of experts"),
        ({"change": _yarn}, "rotary positions by yarn"),
        ({"change": _partial_rotation}, "rotates 16 of 64"),
        ({"change": _unknown_tensor}, "blk.0.attn_mystery.weight"),
        ({"leave_out": "blk.1.ffn_up.weight"}, "lacks the weights of model.layers.1.mlp.up_proj.weight"),
        ({"leave_out": "token_embd.weight"}, "lacks the tensor token_embd.weight"),
        ({"leave_out": "llama.attention.head_count"}, "lacks the metadata llama.attention.head_count"),
        ({"rope_factors": [1.0, 2.0]}, "rope_freqs"),
        ({"pre": "brand-new"}, "pre-tokenizer brand-new"),
        ({"leave_out": "tokenizer.ggml.pre"}, "pre-tokenizer missing"),
        ({"leave_out": "tokenizer.ggml.model"}, "lacks the metadata tokenizer.ggml.model"),
        ({"leave_out": "tokenizer.ggml.merges"}, "lacks the metadata tokenizer.ggml.merges"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_gguf_that_is_not_supported_says_why(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    """Each thing that is missing or not supported is one sentence that names it."""
    file = GgufFile(tiny_gguf(tmp_path / "m.gguf", **options))
    with pytest.raises(LoadFailed, match=said):
        model_and_tokenizer(file)


def test_gguf_of_unknown_tokenizer_kind_says_which(tmp_path: Path) -> None:
    """A vocabulary that is neither of the two kinds is named."""
    writer = GGUFWriter(str(tmp_path / "m.gguf"), "llama")
    writer.add_tokenizer_model("rwkv")
    with pytest.raises(LoadFailed, match="kind rwkv"):
        tokenizer_of(GgufFile(finish(writer, tmp_path / "m.gguf")))


def test_gguf_with_merges_of_unknown_tokens_is_refused(tmp_path: Path) -> None:
    """A merge list that does not fit its vocabulary is a sentence, not the library's own exception."""
    writer = GGUFWriter(str(tmp_path / "m.gguf"), "llama")
    gguf_files.write_byte_vocabulary(writer)
    writer.kv_data[0]["tokenizer.ggml.merges"].value = ["zz yy"]
    with pytest.raises(LoadFailed, match="does not hold together"):
        tokenizer_of(GgufFile(finish(writer, tmp_path / "m.gguf")))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cannot be read"),
        (b"PK\x03\x04 something else", "not a GGUF"),
        (b"GGUF\x01\0\0\0" + bytes(16), "version 1"),
    ],
)
def test_gguf_file_of_another_kind_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    """An empty file, another format and an old version are told apart."""
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(LoadFailed, match=said):
        GgufFile(path)


def test_gguf_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    """Wherever the file ends too early, the header and the data alike, the error is one of ours."""
    whole = tiny_gguf(tmp_path / "m.gguf", kind=Kind.Q4_0).read_bytes()
    path = tmp_path / "cut.gguf"
    ends = [*range(4, 9000, 61), *np.linspace(9000, len(whole) - 1, 20, dtype=int).tolist()]
    for end in ends:
        path.write_bytes(whole[:end])
        with pytest.raises(LoadFailed, match=r"cut short|not a GGUF"):
            GgufFile(path)


def test_gguf_with_damaged_header_never_breaks_otherwise(tmp_path: Path) -> None:
    """Random bytes over the header end in a model or in one of our errors, quickly."""
    whole = bytearray(tiny_gguf(tmp_path / "m.gguf", kind=Kind.Q4_0).read_bytes())
    header, random = GgufFile(tmp_path / "m.gguf").header_bytes, np.random.default_rng(5)
    path = tmp_path / "bad.gguf"
    refused = 0
    for _ in range(150):
        damaged = bytearray(whole)
        for at in random.integers(4, header, size=3):
            damaged[at] = int(random.integers(0, 256))
        path.write_bytes(damaged)
        try:
            file = GgufFile(path)
            configuration(file)
            tokenizer_of(file)
        except LoadFailed:
            refused += 1
    assert refused > 10


@pytest.mark.live
def test_gguf_demo_tokenizer_gives_llama_cpps_ids() -> None:
    """The embedded model's ids are those that llama.cpp gives (recorded with llama-cpp-python 0.3.36)."""
    tokenizer = tokenizer_of(GgufFile(embedded.fetch()))
    for text, ids in RECORDED.items():
        assert tokenizer.encode(text, add_special_tokens=False) == ids
        assert tokenizer.decode(ids) == text


@pytest.mark.live
def test_gguf_demo_next_tokens_are_llama_cpps() -> None:
    """The ten likeliest next tokens stand in the order that llama.cpp gives on the same weights in float32."""
    file = GgufFile(embedded.fetch())
    model = build(file, configuration(file), dtype=mx.float32)
    logits = model(mx.array([RECORDED_PROMPT]))[0, -1]
    assert mx.argsort(-logits)[:10].tolist() == RECORDED_NEXT
