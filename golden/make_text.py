"""The text that test cases train on: four files of invented prose under golden/text/, the same at every run.

Sentences are drawn from a small grammar over the word lists below. Words are drawn by rank (few are common,
many are rare), so that a byte-level model finds something to learn. Only Random.random() is used: its numbers
are the same in every version of Python. Run: python golden/make_text.py
"""
import random
import shutil

from files import GOLDEN, update_manifest

TEXT = GOLDEN / "text"
SEEDS = {"letters.txt": 5101, "ledger.txt": 5102, "travels.txt": 5103, "signs.txt": 5104}

NOUNS = """river harbour lamp orchard ledger bridge winter engine garden captain market window forest letter kettle
mountain valley clock teacher carriage island library hammer village weather bread candle daughter compass stranger
field miller tower cellar notebook meadow ferry baker quarry tide lantern blanket cousin stable chimney doctor road
copper pocket shadow thread basket morning kitchen sailor violin gate mirror journey pigeon barrel meeting question
answer glacier anvil hinge saddle parcel ribbon beacon widow tailor wharf thimble sparrow drum canal furnace ladder
mast acre pebble inkwell trellis heron warden scaffold almanac tollhouse""".split()
ADJECTIVES = """old quiet small late heavy pale narrow honest broken distant warm slow bright empty clever cold deep
patient wooden strange northern tired silver gentle hollow crooked sudden faithful dusty foreign green reckless sober
brittle frugal amber unlucky weightless frostbitten half-finished well-kept""".split()
VERBS = """carried found watched repaired remembered crossed counted opened painted followed left sold borrowed
measured buried answered mended lifted described drew lost avoided noticed weighed hid promised inspected swept named
unlocked exchanged polished mistook overheard outlived""".split()
NAMES = """Anna Matthias Ruth Jonah Elsa Tobias Greta Samuel Ines Walter Clara Oskar Judith Felix Marta Quentin Zelda
Xavier Yvonne Ulric""".split()
PLACES = ["the mill", "Harrow Street", "the lower town", "Kestrel Point", "the old quarry", "Vane & Sons",
          "the customs house", "St. Jude's", "the third lock", "Quay No. 7", "the weir"]
JOINS = ["and", "but", "so", "while", "because", "although", "until", "before", "after", "as if", "unless"]
ADVERBS = """slowly again twice seldom often nearly carefully badly quickly gladly elsewhere already never yesterday
sideways upstream wordlessly""".split()
ASIDES = ["as a rule", "to be fair", "it was said", "by lamplight", "for once", "at any price", "year after year",
          "no doubt", "with both hands", "in spite of everything"]

# Words with letters beyond ASCII, by language: a sentence of travels.txt takes all its words from one line.
FOREIGN = [
    "château forêt été déjà naïve garçon œuvre où être leçon hôtel aïeul noël français fenêtre août mère crème",
    "straße über grün schön mädchen bäcker größe fluß äpfel hügel zwölf brücke können süß öl frühling",
    "niño señal corazón árbol pingüino mañana camión año jamás también según vergüenza ¿dónde? ¡adiós!",
    "łódź żaba źródło część jabłko śnieg młyn ćma dąb kość zażółć gęślą jaźń",
    "příliš žluťoučký kůň úpěl ďábelské ódy řeka most město čas dům květ",
    "smörgås å älv fjäll ø kjøkken blåbær æble brød þorp eyðir sjórinn ís vatnið",
    "ağaç ırmak gün şehir çiçek köprü öğretmen ışık İstanbul değirmen",
    "река мост город зима книга вечер дорога письмо окно яблоко ёлка съезд чай щука",
    "ποτάμι γέφυρα πόλη χειμώνας βιβλίο δρόμος νησί θάλασσα φως ψωμί ξύλο",
    "נהר גשר עיר חורף ספר דרך אור לחם", "نهر جسر مدينة شتاء كتاب طريق ضوء خبز",
    "नदी पुल नगर किताब रास्ता रोटी पहाड़", "แม่น้ำ สะพาน เมือง หนังสือ ถนน", "강 다리 도시 겨울 책 길 빛 빵",
    "川 橋 町 冬 本 道 光 パン さくら みずうみ カメラ", "河流 桥 城市 冬天 书 路 光 面包 山",
    "sông cầu thành phố mùa đông sách đường ánh sáng bánh mì",
]
SIGNS = "←↑→↓∀∂∃∅∈∑−√∞∧∨∩∪∫≈≠≤≥⊂⊕⌘☀☂♞♠♥⚙✓✗❄😀🚲🌍🍞🎻🐟🏔🕯🧭𝄞𝒜𝔹€£¥₿§¶†‡•…‰°±²³µ½¾«»„“”‘’–—×÷"


class Writer:
    """Draws words and sentences from one stream of random numbers."""

    def __init__(self, seed):
        self.random = random.Random(seed).random

    def number(self, low, high):
        """An integer of low...high."""
        return low + int(self.random() * (high - low + 1))

    def chance(self, p):
        return self.random() < p

    def pick(self, items):
        return items[self.number(0, len(items) - 1)]

    def ranked(self, items):
        """Item r is drawn with a density that falls as r grows, roughly like words do."""
        return items[int(len(items) * self.random() ** 2.5)]

    def thing(self):
        article = self.pick(["the", "the", "the", "a", "her", "his", "no", "every", "one"])
        words = [self.ranked(ADJECTIVES)] if self.chance(0.5) else []
        words.append(self.ranked(NOUNS))
        if article == "a" and words[0][0] in "aeiou":
            article = "an"
        return " ".join([article, *words])

    def clause(self):
        who = self.ranked(NAMES) if self.chance(0.4) else self.thing()
        words = [who, self.ranked(VERBS), self.thing()]
        if self.chance(0.3):
            words.insert(1, self.ranked(ADVERBS))
        if self.chance(0.35):
            words += [self.pick(["near", "at", "beyond", "behind", "towards"]), self.ranked(PLACES)]
        return " ".join(words)

    def sentence(self):
        text = self.clause()
        if self.chance(0.3):
            text += f", {self.pick(ASIDES)},"
        if self.chance(0.45):
            text += "" if text.endswith(",") else self.pick(["", ",", ";", ":", " -"])
            text += f" {self.pick(JOINS)} {self.clause()}"
        return text[0].upper() + text[1:].rstrip(",") + self.pick(".....!?")

    def paragraph(self, sentences):
        return " ".join(self.sentence() for _ in range(sentences))

    def year(self):
        return self.number(1790, 1960)


def wrap(text, width=96):
    """Lines of at most `width` characters; words are never cut."""
    lines, line = [], ""
    for word in text.split(" "):
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return "\n".join([*lines, line])


def letters(w):
    """Letters in plain ASCII: date, address, paragraphs, dialogue, signature."""
    out = []
    for _ in range(46):
        place, month = w.pick(PLACES), w.pick(["March", "June", "October"])
        out.append(f"{place[0].upper()}{place[1:]}, {w.number(1, 28)} {month} {w.year()}")
        out.append(f"Dear {w.ranked(NAMES)},")
        for _ in range(w.number(1, 4)):
            out.append(wrap(w.paragraph(w.number(2, 5))))
            if w.chance(0.4):
                out.append(wrap(f'"{w.sentence()}" said {w.ranked(NAMES)}. "{w.sentence()}"'))
        out.append(f"Yours {w.ranked(ADVERBS)},\n\t{w.pick(NAMES)}\n\nP.S. {w.sentence()}\n")
    return "\n\n".join(out)


def ledger(w):
    """Accounts, tables, lists and fragments of code: digits and every ASCII sign."""
    out = []
    for _ in range(66):
        kind = w.number(0, 4)
        if kind == 0:
            out += [f"# {w.ranked(NOUNS).title()} accounts, {w.year()}", "", "no.\titem\tqty\tprice\ttotal"]
            for row in range(w.number(4, 12)):
                qty, price = w.number(1, 99), w.number(1, 99999)
                item = f"{w.ranked(ADJECTIVES)} {w.ranked(NOUNS)}"
                out.append(f"{row + 1:03d}\t{item}\t{qty}\t{price / 100:.2f}\t{qty * price / 100:,.2f}")
        elif kind == 1:
            for _ in range(w.number(3, 8)):
                mark, time = f"{w.pick('-*+')} [{w.pick(' x')}]", f"{w.number(1, 12):02d}:{w.number(0, 59):02d}"
                out.append(f"{mark} {w.sentence()} ({time})")
        elif kind == 2:
            name, other = w.ranked(NOUNS), w.ranked(NOUNS)
            test = f"{other} {w.pick(['<', '>=', '==', '!='])} {w.number(0, 4096)}"
            out += [f"int {name}_{other}(const char *{name}, long {other})", "{",
                    f"    if ({test} && !{name}[{w.number(0, 9)}])",
                    f"        return -{w.number(1, 9)}; /* {w.clause()} */",
                    f'    printf("{name}: %ld\\n", {other} {w.pick("+-*/%^|&")} 0x{w.number(0, 65535):04x}L);',
                    "    return ~0;", "}"]
        elif kind == 3:
            pairs = ", ".join(f'"{w.ranked(NOUNS)}": {w.number(-999, 999) / 8}' for _ in range(w.number(2, 5)))
            out.append(f'{{"place": "{w.pick(PLACES)}", "year": {w.year()}, "values": {{{pairs}}}}}')
            command = f"{w.ranked(NOUNS)} --{w.ranked(ADVERBS)}={w.number(1, 64)} `{w.ranked(NOUNS)}`"
            out.append(f"{w.pick(NAMES).lower()}@{w.ranked(NOUNS)}.example $ {command} | tee ~/{w.year()}.txt")
        else:
            digits = "".join(w.pick("0123456789") for _ in range(w.number(10, 60)))
            number = f"{w.number(1, 9)}.{digits} x 10^{w.number(-30, 30)}"
            note = f"see \\{w.ranked(NOUNS)} #{w.number(1, 400)}"
            out.append(wrap(f"{w.sentence()} {number} = <{w.ranked(NOUNS)}>; {note}. {w.paragraph(2)}"))
        out.append("")
    return "\n".join(out)


def travels(w):
    """English between sentences in seventeen languages, with quotation marks, dashes and currencies."""
    out = []
    for chapter in range(40):
        out.append(f"§ {chapter + 1} — {w.ranked(ADJECTIVES).title()} {w.ranked(NOUNS)}, {w.year()}–{w.number(61, 99)}")
        for _ in range(w.number(2, 3)):
            parts = [w.paragraph(w.number(1, 2))]
            for _ in range(w.number(1, 3)):
                words = w.pick(FOREIGN).split()
                phrase = " ".join(w.pick(words) for _ in range(w.number(3, 9)))
                left, right = w.pick(["«»", "„“", "“”", "‘’", "「」"])
                price = f"{w.number(1, 900)} {w.pick('€£¥₿°')}"
                parts.append(f"{left}{phrase}{right} {w.pick('–—…→')} {price}{w.pick('.;')}")
                parts.append(w.sentence())
            out.append(wrap(" ".join(parts)))
    return "\n\n".join(out) + "\n"


def valid_bytes():
    """The bytes that UTF-8 text without NUL can hold: no C0, C1, F5...FF."""
    return set(range(1, 0xC0)) | set(range(0xC2, 0xF5))


def code_point(w):
    """Any code point but NUL and surrogates; one, two, three and four bytes are equally likely."""
    low, high = w.pick([(1, 0x7F), (0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, 0x10FFFF)])
    while True:
        code = w.number(low, high)
        if not 0xD800 <= code <= 0xDFFF:
            return chr(code)


def signs(w):
    """Lines of a word and arbitrary characters, control characters and all planes among them."""
    out = []
    for line in range(260):
        word = w.ranked(NOUNS)
        if line % 3 == 0:
            tail = "".join(w.pick(SIGNS) + w.pick(["", " "]) for _ in range(w.number(4, 14)))
        else:
            tail = "".join(code_point(w) for _ in range(w.number(6, 20)))
        out.append(f"{line} {word} {tail}")
    return "\n".join(out) + "\n"


FILES = {"letters.txt": letters, "ledger.txt": ledger, "travels.txt": travels, "signs.txt": signs}


def main():
    shutil.rmtree(TEXT, ignore_errors=True)
    TEXT.mkdir()
    every, total = set(), 0
    for name, write in FILES.items():
        data = write(Writer(SEEDS[name])).encode()
        (TEXT / name).write_bytes(data)
        every |= set(data)
        total += len(data)
        print(f"{name}: {len(data)} bytes, {len(set(data))} values")
    print(f"{total} bytes, {len(every)} values")
    assert every == valid_bytes(), sorted(valid_bytes() - every)
    update_manifest("text", "python golden/make_text.py", SEEDS, "text")


if __name__ == "__main__":
    main()
