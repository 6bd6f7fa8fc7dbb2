"""Small byte-level BPE tokenizers of four families, trained on golden/text, and what `tokenizers` makes of hard texts.

golden/tokenizers/<name>.json is a tokenizer.json; golden/tokenizers/expected.json has for each of them a list of texts (UTF-8 as
hexadecimal digits), their ids with and without what the post-processor adds, and the bytes that the ids decode to. The
trained files are the same at every run. Run: python golden/make_tokenizers.py
"""
import json
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from files import GOLDEN, update_manifest

OUT = GOLDEN / "tokenizers"
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + REST
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + REST
O200K = (r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+" + CONTRACTIONS + r"?|[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + "*"
         + CONTRACTIONS + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def trained(pre, size, specials, normalizer=None, ignore_merges=False):
    """A tokenizer trained on golden/text; `specials` come behind the words, as in the published files."""
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    t.pre_tokenizer, t.decoder = pre, decoders.ByteLevel()
    if normalizer:
        t.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, special_tokens=[],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    t.train(sorted(str(p) for p in (GOLDEN / "text").iterdir()), trainer)
    t.add_special_tokens([s for s in specials if s.special])
    t.add_tokens([s for s in specials if not s.special])
    return t


def special(text, **more):
    return AddedToken(text, special=True, normalized=False, **more)


def tokenizers():
    made = {}
    made["gpt2"] = trained(pre_tokenizers.ByteLevel(add_prefix_space=False), 600, [special("<|endoftext|>")])
    made["gpt2"].post_processor = processors.ByteLevel(trim_offsets=False)
    made["prefix"] = trained(pre_tokenizers.ByteLevel(add_prefix_space=True), 500,
                             [special("<s>"), special("</s>"), special("<mask>", lstrip=True), special("<end>", rstrip=True),
                              AddedToken("Harrow Street", normalized=True, special=False), AddedToken("<s", special=False)])
    t = made["llama3"] = trained(split(LLAMA3), 700, [special("<|begin_of_text|>"), special("<|end_of_text|>"),
                                                      special("<|eot_id|>")], ignore_merges=True)
    begin = t.token_to_id("<|begin_of_text|>")
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B",
                                      special_tokens=[("<|begin_of_text|>", begin)])])
    t = made["qwen2"] = trained(split(QWEN2), 650, [special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>"),
                                                    AddedToken("<tool_call>", normalized=False, special=False),
                                                    AddedToken("é́x", normalized=True, special=False)],
                                normalizers.NFC())
    t.post_processor = processors.TemplateProcessing(single="$A <|endoftext|>", pair="$A $B",
                                                     special_tokens=[("<|endoftext|>", t.token_to_id("<|endoftext|>"))])
    made["o200k"] = trained(split(O200K), 600, [special("<|endoftext|>"), special("<|return|>")])
    made["cl100k"] = trained(split(CL100K), 550, [special("<|endoftext|>")])
    return made


def texts():
    """What tokenizers get wrong."""
    fixed = [
        "", " ", "  ", "a", " a", "  a", "a ", "a  ", "\n", "\r\n", " \n", "\n\n  \n x", "\t\tx\ty", "a\r\n\r\nb", "  \r\n \n",
        "Hello world", "hello   world", "I'm you're we've he'll it's they'd don't 'tis", "I'M YOU'RE WE'VE HE'LL IT'S THEY'D DON'T",
        "'ſ'S 'Ll 'lL 'K", "'ſa 'Sa 'sa 'VEr 'ſ", "'", "''s", " 's", "1 12 123 1234 12345 1234567890", "x1y22z333", "½ Ⅷ ٣٤٥ 1½2", "3.14159e-10 0xff",
        "!!! ??? ... --- ()[]{}", "a.b,c;d", "(hello)", " (hello)", "\"quoted\" «guillemets»", "foo_bar-baz/qux\\n", "a/b//c///\n/d",
        "café cafe\u0301 \u0301\u0301e", "Å \u212b A\u030a \u1e9b\u0323", "ﬁne ﬂow", "straße STRASSE ǅ ǆ ª º ʰx", "汉字と仮名 한국어 中文123abc",
        "हिन्दी का परीक्षण", "ภาษาไทย", "עברית العربية", "😀😃👨‍👩‍👧‍👦🏳️‍🌈 👍🏽", "\u200b\u200d\ufeff\u00a0x\u3000y\u2028z\u0085w\u180ev",
        "a\u0300\u0301b", "HTTPServer XMLHttpRequest iPhone", "camelCaseWord SCREAMING_SNAKE", "ABCdef's GHI'll jkl'D", "ΑΒΓδεζ ЖЗИйкл",
        "x" * 300, " " * 300, "ab" * 400, "é" * 150, "\n" * 50, "1" * 50, "<|endoftext|>", "a<|endoftext|>b", " <|endoftext|> ",
        "<|endoftext|><|endoftext|>", "<|begin_of_text|>x<|eot_id|>", "<|im_start|>user\nhi<|im_end|>\n", "<|endoftext", "<|return|>",
        "a <mask> b", "a   <mask>   <mask> b", "<end>   a", "a <end> \n <mask> b", "<s>x</s>", "<s", "<s><s", "on Harrow Street, ",
        "Harrow Street", "<tool_call> {}", "é́x", "e\u0301\u0301x", "x é́xy", "\x00\x01\x1f\x7f", "\u0100\u0120\u0143", "Ġhello Ċ",
        "\U0010ffff\U000e0001", "The river again noticed his orchard, year after year? „příliš dům“ → 359 £;\n",
    ]
    rng = random.Random(77)
    alphabet = "abcXYZ  \n\r\t'sStTlLdD019.,!-/_éñßąĀЖع中あ한½²ª\u0301\u00a0\u2003😀👍\u200d<|>"
    fixed += ["".join(alphabet[int(rng.random() * len(alphabet))] for _ in range(1 + int(rng.random() * 40))) for _ in range(150)]
    corpus = (GOLDEN / "text" / "travels.txt").read_text()
    return fixed + [corpus[:1200]]


def main():
    OUT.mkdir(exist_ok=True)
    expected = {}
    for name, t in tokenizers().items():
        path = OUT / f"{name}.json"
        t.save(str(path))
        value = json.loads(path.read_text())
        if name in ("gpt2", "qwen2"):  # the older form of merges
            value["model"]["merges"] = [" ".join(m) for m in value["model"]["merges"]]
        path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")
        t = Tokenizer.from_file(str(path))
        rows = []
        for text in texts():
            plain = t.encode(text, add_special_tokens=False).ids
            rows.append({"text": text.encode().hex(), "ids": plain, "special": t.encode(text).ids,
                         "decoded": t.decode(plain, skip_special_tokens=False).encode().hex()})
        expected[name] = rows
    lines = []
    for name, rows in expected.items():
        lines.append(f'"{name}":[\n' + ",\n".join(json.dumps(r, separators=(",", ":")) for r in rows) + "\n]")
    (OUT / "expected.json").write_text("{" + ",\n".join(lines) + "}\n")
    update_manifest("tokenizers", "python golden/make_tokenizers.py", 77, "tokenizers")


if __name__ == "__main__":
    main()
