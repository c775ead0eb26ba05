"""Corpora of short documents: definitions, questions and answers, parallel translations."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from widestream.corpora.catalogue import Corpus, Record, corpus
from widestream.corpora.packages import PackageCache
from widestream.corpora.readers import (
    document,
    gettext_messages,
    markup_to_text,
    question_and_answer,
    read_text,
)

_ANSWER_CHARACTERS_MIN = 40
_SENTENCE_CHARACTERS_MIN = 40


@corpus(
    tags="text ci short",
    licence="WordNet 3.0",
    terms="free",
    download_mb=7,
    minimum_records=110_000,
    core="wordnet-base",
)
def wordnet_gloss(cache: PackageCache, this: Corpus) -> Iterator[Record]:
    """WordNet glosses, very short"""
    for part in ("noun", "verb", "adj", "adv"):
        for line in read_text(cache.file("wordnet-base", f"/data.{part}")).splitlines():
            if not line.startswith(" ") and " | " in line:  # the licence text is indented
                head, gloss = line.split(" | ", 1)
                fields = head.split()
                words = fields[4 : 4 + 2 * int(fields[3], 16) : 2]
                yield document(f"{', '.join(words).replace('_', ' ')} ({part}): {gloss.strip()}", "en")


@corpus(
    tags="text ci qa maths short",
    licence="GPL-2",
    terms="share-alike",
    download_mb=1,
    minimum_records=11_500,
    core="maxima-test",
)
def maxima_qa(cache: PackageCache, this: Corpus) -> Iterator[Record]:
    """Maxima test suite: expression and expected result, trivial ones marked"""
    for path in cache.files("maxima-test", ".mac"):
        if not path.name.startswith("rtest"):
            continue
        text = re.sub(r"/\*.*?\*/", "", read_text(path, "latin-1"), flags=re.S)
        items = [item.strip() for item in re.split(r"[;$]\s*(?:\n|$)", text) if item.strip()]
        for prompt, answer in zip(items[::2], items[1::2], strict=False):
            setup = ":=" in prompt or prompt.startswith(("kill", "assume"))
            trivial = setup or answer in ("done", "true", "0", "[]")
            yield question_and_answer(prompt, answer, "maxima", trivial=trivial)


_DOCTEST = re.compile(
    r"((?:^[ \t]*>>> .*\n(?:^[ \t]*\.\.\. .*\n)*)+)"  # statements with their continuations
    r"((?:^(?![ \t]*>>>)[ \t]*\S.*\n)+)",  # what they print, up to a blank line
    re.M,
)


@corpus(
    tags="text ci qa maths short",
    licence="BSD-3-Clause",
    terms="free",
    download_mb=5,
    minimum_records=11_000,
    core="python3-sympy",
)
def sympy_doctest_qa(cache: PackageCache, this: Corpus) -> Iterator[Record]:
    """SymPy docstring examples: input and printed answer"""
    for path in cache.files("python3-sympy", ".py"):
        inside = path.relative_to(cache.trees).as_posix()
        for match in _DOCTEST.finditer(read_text(path)):
            # Code follows the end of the docstring.
            answer = re.split(r'"""|\'\'\'', match[2], maxsplit=1)[0]
            if answer.strip():
                prompt = re.sub(r"^[ \t]+", "", match[1], flags=re.M)
                yield question_and_answer(prompt, answer, "python", path=inside)


@corpus(
    tags="text ci qa multilingual",
    licence="Debian FAQ licence (copyleft)",
    terms="share-alike",
    download_mb=5,
    minimum_records=200,
    core="debian-faq debian-faq-ja",
    extra=" ".join(f"debian-faq-{x}" for x in ["de", "fr", "it", "ko", "nl", "pt", "ru", "zh-cn"]),
)
def debian_faq_qa(cache: PackageCache, this: Corpus) -> Iterator[Record]:
    """Debian FAQ: questions in 10 languages, aligned by section number"""
    for path in cache.files(this.core + this.extra, ".html"):
        for section in re.split(r'(?=<h[23][^>]*class="title")', read_text(path))[1:]:
            title, _, body = markup_to_text(section).partition("\n")
            is_question = title.rstrip().endswith(("?", "\uff1f"))
            if is_question and len(body.strip()) > _ANSWER_CHARACTERS_MIN:
                number = re.match(r"[\d.]+\d", title)
                lang, key = path.name.split(".")[-2], number[0] if number else None
                yield question_and_answer(title, body, lang, key=key)


@corpus(
    tags="text multilingual parallel",
    licence="GPL-2+",
    terms="share-alike",
    download_mb=146,
    minimum_records=40_000,
    core="wesnoth-1.16-data|wesnoth-1.18-data",
)
def wesnoth_parallel(cache: PackageCache, this: Corpus) -> Iterator[Record]:
    """Battle for Wesnoth: English strings with translations into 55 languages"""
    for path in cache.files(this.core, ".mo"):
        lang = path.parts[-3]
        for english, translation in gettext_messages(path):
            long_enough = len(english) > _SENTENCE_CHARACTERS_MIN
            if long_enough and translation and translation != english:
                key = hashlib.blake2b(english.encode(), digest_size=8).hexdigest()
                text = f"en: {english}\n{lang}: {translation}"
                yield document(text, lang, key=key, en=english, translation=translation)
