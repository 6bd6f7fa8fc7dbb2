"""Lines and branches of the engine that a run executed, against the list in docs/DETECTION.md.

usage: coverage.py GCOVR.json docs/DETECTION.md [--missing]

The list is the block of docs/DETECTION.md that begins with ```unexecuted.  A row is one of

    FILE: FUNCTION() — REASON                    no line of the function is executed
    FILE: FUNCTION() `TEXT` `TEXT` — REASON      in it, the lines that contain one of the texts are not executed
    FILE: `TEXT` — REASON                        lines that contain the text, in any function

and FILE may hold * (gpu/ops/*.cu).  Fails (exit code 1) when a line is neither executed nor listed, and when a row, or a
text of it, matches nothing that is not executed: a row that became wrong must go.  --missing prints the lines that no row
covers as rows without a reason.
"""

import fnmatch
import json
import re
import sys
from collections import defaultdict

HEAD = re.compile(r"^[A-Za-z_].*?\b(\w+)\(")
ROW = re.compile(r"^(?P<file>[\w/.*]+):(?: (?P<function>\w+)\(\))?(?P<texts>(?: `[^`]+`)*) — (?P<reason>\S.*)$")
TEXT = 48  # characters of a line that --missing prints


def functions_of(source):
    """Name of the function around each line: by .clang-format its head begins in column 0."""
    name, names = "", []
    for line in source:
        match = HEAD.match(line)
        if match and "=" not in line and not line.rstrip().endswith(";"):
            name = match.group(1)
        names.append(name)
    return names


def read_rows(path):
    rows, inside = [], False
    for number, line in enumerate(open(path, encoding="utf-8"), 1):
        line = line.rstrip("\n")
        if line.startswith("```"):
            inside = line == "```unexecuted"
        elif inside and line and not line.startswith("#"):
            match = ROW.match(line)
            if not match or not (match["function"] or match["texts"]):
                sys.exit(f"{path}:{number}: expected 'FILE: FUNCTION() `TEXT`... — REASON', found: {line}")
            for text in re.findall(r"`([^`]+)`", match["texts"]) or [None]:
                rows.append({"file": match["file"], "function": match["function"], "text": text, "line": number, "used": 0})
    return rows


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    report, listing = json.load(open(sys.argv[1], encoding="utf-8")), sys.argv[2]
    rows = read_rows(listing)
    total, unlisted = [0, 0, 0, 0], []
    print(f"{'file':34s} {'lines':>6s} {'run':>6s} {'':>6s}   {'branches':>8s} {'taken':>6s}")
    for entry in sorted(report["files"], key=lambda f: f["file"]):
        file = entry["file"]
        source = open(file, encoding="utf-8").read().split("\n")
        names = functions_of(source)
        lines = [l for l in entry["lines"] if not l.get("gcovr/noncode")]
        branches = [b for l in lines for b in l["branches"]]
        counts = [len(lines), sum(l["count"] > 0 for l in lines), len(branches), sum(b["count"] > 0 for b in branches)]
        total = [a + b for a, b in zip(total, counts)]
        print(format_row(file, counts))
        alive = {names[l["line_number"] - 1] for l in lines if l["count"] > 0}
        for l in lines:
            if l["count"] > 0:
                continue
            text, function = source[l["line_number"] - 1], names[l["line_number"] - 1]
            covered = False
            for row in rows:
                hit = fnmatch.fnmatch(file, row["file"]) and row["function"] in (None, function)
                hit = hit and (row["text"] in text if row["text"] else function not in alive)
                row["used"] += hit
                covered = covered or hit
            if not covered:
                unlisted.append((file, l["line_number"], function, function in alive, text.strip()))
    print(format_row("total", total))
    if "--missing" in sys.argv:
        for row, texts in as_rows(unlisted).items():
            print(row + "".join(f" `{t}`" for t in texts))
    else:
        for file, number, function, _, text in unlisted:
            print(f"coverage: {file}:{number}: {function}: not executed by assay run and not listed in {listing}: {text}")
    stale = [row for row in rows if not row["used"]]
    for row in stale:
        print(f"coverage: {listing}:{row['line']}: {row['file']}: {row['text'] or row['function']}: executed now, or gone: remove the row")
    listed = total[0] - total[1] - len(unlisted)
    print(f"coverage: {total[1]} of {total[0]} lines executed, {listed} listed with a reason, {len(unlisted)} neither, {len(stale)} stale rows")
    return 1 if unlisted or stale else 0


def as_rows(unlisted):
    """{"FILE: FUNCTION()": beginnings of lines, none for a function that is not executed at all}"""
    rows = {}
    for file, _, function, alive, text in unlisted:
        texts = rows.setdefault(f"{file}: {function}()", [])
        if alive and text[:TEXT].strip() not in texts:
            texts.append(text[:TEXT].strip())
    return rows


def format_row(name, c):
    share = [100.0 * c[1] / c[0] if c[0] else 100.0, 100.0 * c[3] / c[2] if c[2] else 100.0]
    return f"{name:34s} {c[0]:6d} {c[1]:6d} {share[0]:5.1f}%   {c[2]:8d} {c[3]:6d} {share[1]:5.1f}%"


if __name__ == "__main__":
    sys.exit(main())
