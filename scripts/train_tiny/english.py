"""Plain English: the example sentences of WordNet 3.0, from Debian's package wordnet-base.

Its licence (WordNet 3.0, Princeton University) permits use, copying, modification and distribution for any purpose
without fee, with its notice kept; the sentences themselves are not part of this repository.
"""

import collections
import re
from pathlib import Path

COMMON = 5000  # words: a sentence with a rarer one is left out, which also keeps slurs and jargon out
UNKIND = re.compile(r"\b(kill|sex|murder|rape|damn|bastard|drug|poison)", re.I)  # not from a model of a few words


def sentences(folder):
    """The plain sentences in the glosses of `folder`/data.*, sorted: capitalised, with a full stop."""
    found = set()
    for part in ("noun", "verb", "adj", "adv"):
        for line in (Path(folder) / f"data.{part}").read_text(encoding="latin-1").splitlines():
            if " | " in line and not line.startswith("  "):
                found.update(re.findall(r'"([^"]+)"', line.split(" | ", 1)[1]))
    plain = sorted(s.strip() for s in found if re.fullmatch(r"[A-Za-z][a-z' ,]+[a-z][.?!]?", s.strip()))
    count = collections.Counter(w for s in plain for w in re.findall(r"[a-z']+", s.lower()))
    common = {w for w, _ in sorted(count.items(), key=lambda x: (-x[1], x[0]))[:COMMON]}
    plain = (s for s in plain if len(s.split()) >= 4 and not UNKIND.search(s))
    kept = (s for s in plain if set(re.findall(r"[a-z']+", s.lower())) <= common)
    return [s[0].upper() + s[1:] + ("" if s[-1] in ".?!" else ".") for s in kept]
