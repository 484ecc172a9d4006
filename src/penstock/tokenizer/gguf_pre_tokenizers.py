"""How a byte-pair vocabulary of a GGUF file cuts a text into words before it merges bytes.

``tokenizer.ggml.pre`` names one of llama.cpp's ways. Token ids are to be those that llama.cpp
gives, so these patterns match what it matches, which is not always what the checkpoint's own
tokenizer.json does: llama.cpp tells letters by case in ASCII only, takes digits to be ASCII where a
pattern says ``\\d``, and lets a range of characters not contain white space.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from tokenizers import Regex, pre_tokenizers

from penstock.errors import TokenizerError


@dataclass(frozen=True)
class PreTokenizer:
    """What ``tokenizer.ggml.pre`` stands for."""

    patterns: tuple[str, ...]
    """Regular expressions. The matches of one become words, and so does what is between them; each
    is applied within the words that those before it left."""
    whole_words_first: bool = False
    """Whether a word that is in the vocabulary is taken whole, whatever merges would make of it."""
    add_bos: bool = False
    """Whether texts begin with the BOS token, unless the file says otherwise."""
    needs_bos: bool = False
    """Whether they do even then: old conversions of Gemma 4 say otherwise by mistake."""
    spelled_bytes: bool = True
    """Whether each byte of a word is a printable character, as GPT-2 has it. Otherwise tokens are
    text in which U+2581 is a space, and characters without a token are spelled ``<0xE9>``."""

    @property
    def cuts(self) -> list[pre_tokenizers.PreTokenizer]:
        """The steps of a ``tokenizers`` tokenizer that cut as the patterns say."""
        return [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]

    @property
    def steps(self) -> list[pre_tokenizers.PreTokenizer]:
        """All steps of one: what was cut is also spelled as the vocabulary has it."""
        spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return [*self.cuts, spell] if self.spelled_bytes else self.cuts


def pre_tokenizer_names() -> list[str]:
    """All values of ``tokenizer.ggml.pre`` that are known."""
    return sorted(_KNOWN)


def pre_tokenizer_kinds() -> list[tuple[str, PreTokenizer]]:
    """All ways to cut a text that are known, each with one of its names: the usual one."""
    return [(names[0], kind) for names, kind in _KINDS.items()]


def pre_tokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer of this name; of the empty one, the default. Raises TokenizerError."""
    found = _KNOWN.get(name or "default")
    if found is None:
        near = get_close_matches(name, _KNOWN, n=3)
        nearest = f" (the nearest that it knows: {', '.join(near)})" if near else ""
        raise TokenizerError(
            f"tokenizer.ggml.pre is {name!r:.100}, which Penstock does not know{nearest}; name a "
            "folder with the tokenizer.json of the original checkpoint by --tokenizer"
        )
    return found


_CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
_ANY_CASE = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_GPT2 = rf"{_CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|`]+"
_CJK = "[一-龥\u3040-ゟ゠-ヿ]+"  # noqa: RUF001
_HAN = (
    r"\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B73F}\x{2B740}-\x{2B81F}"
    r"\x{2B820}-\x{2CEAF}\x{2CEB0}-\x{2EBEF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}"
)
_TRIPLES = (
    r"\P{N}*+\p{N}+|\P{N}+",
    r"\A\P{N}*+\p{N}{1,2}(?=(?:\p{N}{3})+\z)",
    r"\A\P{N}++\p{N}{3}|\p{N}{3}",
)
"""Digits three by three from the right, the first of them with all that is before the number. Each
pattern looks at a digit once: one that looked ahead to the end of the number at every digit would
take the square of its length."""

_REST = r"[0-9]{1,2}(?=(?:[0-9]{3})+(?![0-9]))"
_FEW = r"(?:[0-9]{1,2}(?![0-9]))?"
_ASCII_TRIPLES = (
    rf"\A{_REST}|[0-9]{{3}}(?=[0-9])|(?:[0-9]{{3}}|\A{_FEW})(?:[^0-9]+{_FEW})*(?:{_REST})?"
)
"""The same where a cut is made only before three ASCII digits, and others stay with those before
them: what is too short to cut, and the one or two digits that a number begins with."""


def _cl100k(digits: str, contractions: str = f"{_ANY_CASE}|") -> str:
    """The pattern of cl100k_base, whose users differ in how many digits make a word."""
    return f"{contractions}{_LETTERS}|{digits}|{_SYMBOLS}|{_SPACES}"


def _by_case(letters: str, digits: str, contractions: str = "") -> str:
    """Words that change from lower to upper case at most at their first letters, as o200k_base
    has them; letters that are not ASCII may be either."""
    upper, lower = f"[{letters}&&[^a-z]]", f"[{letters}&&[^A-Z]]"
    before = r"[^\r\n\p{L}\p{N}]?"
    return (
        f"{before}{upper}*{lower}+{contractions}|{before}{upper}+{lower}*{contractions}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


def _any_script(digits: str) -> str:
    """Letters with their marks, in one word whatever their case."""
    return (
        rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+{_ANY_CASE}?|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


def _deepseek(symbols: str) -> str:
    return (
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        rf"| ?[\p{{P}}\p{{S}}]+{symbols}|\s+(?!\S)|\s+"
    )


_LLAMA3 = (_cl100k(r"\p{N}{1,3}"),)
_QWEN2 = (_cl100k(r"\p{N}"),)
_DIGITS = (r"\p{N}", _GPT2)
_BLOOM = " ?[^(\\s|.,!?…。，、।۔،)]+"  # noqa: RUF001
_DEEPSEEK3 = (r"\p{N}{1,3}", _CJK, _deepseek(r"[\r\n]*|\s*[\r\n]+"))
_DEEPSEEK_CJK = r"[[一-龥ࠀ-一가-\x{D7FF}]&&[^\s]]+"
_DEEPSEEK_LETTERS = (
    r"\s?["
    r"A-Za-z\x{00B5}\x{00C0}-\x{00D6}\x{00D8}-\x{00F6}\x{00F8}-\x{01BA}\x{01BC}-\x{01BF}"
    r"\x{01C4}-\x{0293}\x{0295}-\x{02AF}\x{0370}-\x{0373}\x{0376}\x{0377}\x{037B}-\x{037D}"
    r"\x{037F}\x{0386}\x{0388}-\x{038A}\x{038C}\x{038E}-\x{03A1}\x{03A3}-\x{03F5}"
    r"\x{03F7}-\x{0481}\x{048A}-\x{052F}\x{0531}-\x{0556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}"
    r"\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}"
    r"\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}"
    r"\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}"
    r"\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}"
    r"\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}"
    r"\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}"
    r"\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}"
    r"\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}"
    r"\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}"
    r"\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}"
    r"\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}"
    r"\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}"
    "]+"
)
_YOUTU = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + _CJK  # noqa: RUF001
_ASIAN = (
    "[一-鿿㐀-䶿豈-\ufaff\u3040-ゟ゠-ヿ･-ﾟ⼀-\u2fdfเ-\u0e7f\u0e80-\u0eff"  # noqa: RUF001
    "ក-\u17ffက-႟ꩠ-ꩿꧠ-\ua9ff"
    "가-\ud7afᄀ-ᇿ]+"
)
_KIMI = (
    rf"[{_HAN}]+|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^{_HAN}]]+{_ANY_CASE}?|\p{{N}}{{1,3}}"
    f"|{_SYMBOLS}|{_SPACES}"
)
_JAIS2_SPACES = r"\s*[\r\n]+|" + "".join(
    rf"\s{{{count}}}(?!\S)|" for count in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2")
)

_KINDS: dict[tuple[str, ...], PreTokenizer] = {
    ("default",): PreTokenizer(
        (_PUNCTUATION.replace("`", ""), _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")
    ),
    (
        *("gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling"),
        *("exaone4", "gigachat", "a.x-4.0", "mellum", "modern-bert", "roberta-bpe", "jina-es"),
        *("jina-de", "jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v2-code"),
    ): PreTokenizer((_GPT2,)),
    (
        *("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
        "mellum2",
    ): PreTokenizer(_DIGITS),
    (
        *("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0"),
        *("lfm2", "jina-v5-nano"),
    ): PreTokenizer(_LLAMA3, whole_words_first=True, add_bos=True),
    ("dbrx", "smaug-bpe", "chatglm-bpe"): PreTokenizer(_LLAMA3),
    ("glm4", "glm5"): PreTokenizer(_LLAMA3, whole_words_first=True),
    (
        *("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan"),
        *("solar-open", "grok-2"),
    ): PreTokenizer(_QWEN2),
    ("qwen35",): PreTokenizer(
        (
            rf"{_ANY_CASE}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
        )
    ),
    ("ufakzeka",): PreTokenizer((_cl100k(r"\p{N}", ""),)),
    ("laguna",): PreTokenizer((r"[^\n]+|\n+", *_QWEN2)),
    ("minicpm5",): PreTokenizer((r"\p{N}{1,3}", _cl100k(r"\p{N}+")), whole_words_first=True),
    ("seed-coder",): PreTokenizer(
        (rf"{_ANY_CASE}|{_LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",)
    ),
    ("bailingmoe", "bailingmoe2", "llada-moe"): PreTokenizer(
        (
            rf"{_ANY_CASE}|{_LETTERS}|\p{{N}}|{_SYMBOLS}"
            r"|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ),
    ("exaone-moe",): PreTokenizer(
        (
            rf"{_ANY_CASE}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ),
    ("jais-2",): PreTokenizer(
        (rf"{_ANY_CASE}|{_LETTERS}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_JAIS2_SPACES}\s",)
    ),
    ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"): PreTokenizer(
        (_by_case(r"\p{L}", r"\p{N}{1,3}", _ANY_CASE + "?"),)
    ),
    ("granite-embed-multi-97m",): PreTokenizer(
        (_by_case(r"\p{L}\p{M}", r"\p{N}{1,3}", _ANY_CASE + "?"),), whole_words_first=True
    ),
    ("tekken",): PreTokenizer(
        (_by_case(r"\p{L}", r"\p{N}"),), whole_words_first=True, add_bos=True
    ),
    ("tiny_aya", "cohere2moe"): PreTokenizer((*_TRIPLES, _any_script(r"\p{N}{1,3}"))),
    ("youtu",): PreTokenizer((_YOUTU, _any_script(r"\p{N}")), whole_words_first=True),
    ("kimi-k2",): PreTokenizer((_KIMI,)),
    ("superbpe",): PreTokenizer((r"\p{N}+", _ASCII_TRIPLES)),
    ("deepseek-llm",): PreTokenizer(
        (
            "[\r\n]",
            _DEEPSEEK_LETTERS,
            "\\s?[!-/:-~！-／：-～‘-‟、。]+",  # noqa: RUF001
            r"\s+\z",
            _DEEPSEEK_CJK,
            r"\p{N}+",
        )
    ),
    ("deepseek-coder",): PreTokenizer(
        ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}")
    ),
    ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"): PreTokenizer(_DEEPSEEK3),
    ("spark2_5",): PreTokenizer((r"\p{N}{1,3}", _CJK, _deepseek(r"|[\r\n]"), r"\p{N}")),
    ("afmoe",): PreTokenizer((*_TRIPLES, _ASIAN, _deepseek(r"[\r\n]*|\s*[\r\n]+"))),
    ("falcon",): PreTokenizer((_PUNCTUATION, _GPT2, "[0-9][0-9][0-9]")),
    ("bloom", "poro-chat", "gpt3-finnish"): PreTokenizer((_BLOOM,)),
    ("viking",): PreTokenizer((_BLOOM, r"\p{N}")),
    ("chameleon",): PreTokenizer(
        (
            "<sentinel:[0-9]+>",
            "IMGIMG[A-I]{1,4}Z",
            r"[\t\n]|    |  ",
            *(r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", _GPT2),
        ),
        add_bos=True,
    ),
    ("gemma4", "granite-embed-multi-311m"): PreTokenizer(
        (r"[^\n]+|\n+",), needs_bos=True, spelled_bytes=False
    ),
    ("sarvam-moe",): PreTokenizer((r"[^\n]+|\n+",), spelled_bytes=False),
}
_KNOWN = {name: kind for names, kind in _KINDS.items() for name in names}
