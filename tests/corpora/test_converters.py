"""Each converter on a small made-up package."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest

from tests.corpora.packages_support import convert, mo_file, r_database, sword_module, unpack
from widestream.corpora import CorporaError, list_corpora
from widestream.corpora.packages import PackageCache


def test_every_corpus_says_what_it_is() -> None:
    corpora = list_corpora()
    assert len({corpus.name for corpus in corpora}) == len(corpora) >= 20
    for corpus in corpora:
        assert corpus.summary and corpus.licence and corpus.core
        assert corpus.tags[0] == "text"
        assert corpus.terms in ("free", "share-alike", "local")
        assert corpus.minimum_records >= 1


def test_names_and_tags_select() -> None:
    assert [c.name for c in list_corpora(["kjv_bible", "kjv_bible"])] == ["kjv_bible"]
    assert {"code_go", "code_python", "code_rust"} == {c.name for c in list_corpora(["code"])}
    with pytest.raises(CorporaError, match=r"no corpus or tag is named 'code_gp'; did you mean .*code_go"):
        list_corpora(["code_gp"])
    with pytest.raises(CorporaError, match="there are: all, "):
        list_corpora(["zzzzzzzz"])


def test_code_is_one_record_a_file_in_a_fixed_order(tmp_path: Path) -> None:
    cache = unpack(tmp_path, "golang-1.19-src", {"src/b.go": "package b", "src/a.go": "package a", "x.s": "no"})
    (tmp_path / "tree/golang-1.19-src/src/link.go").symlink_to("a.go")
    records = convert("code_go", cache)
    assert [(r["path"], r["text"]) for r in records] == [
        ("golang-1.19-src/src/a.go", "package a"),
        ("golang-1.19-src/src/b.go", "package b"),
    ]
    assert {r["lang"] for r in records} == {"go"}


def test_the_other_name_of_a_package_is_found(tmp_path: Path) -> None:
    cache = unpack(tmp_path, "golang-1.24-src", {"a.go": "package a"})
    assert len(convert("code_go", cache)) == 1


def test_extra_packages_add_records(tmp_path: Path) -> None:
    unpack(tmp_path, "python3-sympy", {"a.py": "pass"})
    cache = unpack(tmp_path, "libpython3.11-stdlib", {"b.py": "pass #"})
    assert len(convert("code_python", cache)) == 2


@pytest.mark.parametrize(
    ("corpus", "package", "path", "lang"),
    [
        ("linux_doc_rst", "linux-doc-6.1", "usr/share/doc/x/Documentation/mm/a.rst.gz", "en"),
        ("linux_doc_rst", "linux-doc-6.1", "x/Documentation/translations/zh_CN/mm/a.rst.gz", "zh_CN"),
        ("debian_reference_books", "debian-reference-ja", "x/debian-reference.ja.txt.gz", "ja"),
        ("manpages_roff", "manpages", "usr/share/man/man2/open.2.gz", "en"),
        ("manpages_roff", "manpages-de", "usr/share/man/de/man1/ls.1.gz", "de"),
        ("manpages_roff", "manpages-zh", "usr/share/man/zh_TW/man1/ls.1.gz", "zh_TW"),
    ],
)
def test_language_comes_from_the_path(tmp_path: Path, corpus: str, package: str, path: str, lang: str) -> None:
    files = {path: gzip.compress(b"words"), "elsewhere/readme.gz": gzip.compress(b"no")}
    (record,) = convert(corpus, unpack(tmp_path, package, files))
    assert (record["lang"], record["text"]) == (lang, "words")


def test_plain_documentation(tmp_path: Path) -> None:
    assert convert("pydoc_rst", unpack(tmp_path, "python3.11-doc", {"a.rst.txt": "Title"}))[0]["text"] == "Title"
    assert convert("perl_pod", unpack(tmp_path, "perl-doc", {"a.pod": "=head1"}))[0]["lang"] == "en"
    assert convert("code_rust", unpack(tmp_path, "rust-src", {"a.rs": "fn a() {}"}))[0]["lang"] == "rust"


def test_wordnet_glosses(tmp_path: Path) -> None:
    licence = "  1 This software | is licensed\n"
    noun = "00001740 03 n 02 living_thing 0 being 0 001 @ 1 n 0000 | a living (or once living) entity  \n"
    files = {f"usr/share/wordnet/data.{part}": licence for part in ("verb", "adj", "adv")}
    files["usr/share/wordnet/data.noun"] = licence + noun
    (record,) = convert("wordnet_gloss", unpack(tmp_path, "wordnet-base", files))
    assert record["text"] == "living thing, being (noun): a living (or once living) entity"


def test_maxima_pairs(tmp_path: Path) -> None:
    suite = "/* a comment; */\nkill(all);\ndone;\nintegrate(x^2, x);\nx^3/3;\nleft over;\n"
    cache = unpack(tmp_path, "maxima-test", {"rtest1.mac": suite, "other.mac": "a;\nb;\n"})
    setup, integral = convert("maxima_qa", cache)
    assert (setup["prompt"], setup["answer"], setup["trivial"]) == ("kill(all)", "done", True)
    assert integral["text"] == "Q: integrate(x^2, x)\nA: x^3/3"
    assert not integral["trivial"]


def test_doctests_end_with_their_docstring(tmp_path: Path) -> None:
    module = '''def f():
    """
    >>> from sympy import x
    >>> f(
    ...     x)
    x + 1
    2

    >>> g()
    3
    """
    return 1
'''
    first, second = convert("sympy_doctest_qa", unpack(tmp_path, "python3-sympy", {"m.py": module}))
    assert first["prompt"] == ">>> from sympy import x\n>>> f(\n...     x)"
    assert first["answer"] == "x + 1\n    2"
    assert (second["answer"], second["path"]) == ("3", "python3-sympy/m.py")


def test_faq_takes_only_questions(tmp_path: Path) -> None:
    page = (
        '<h2 class="title">1.2. What is <em>Debian</em>?</h2><p>Debian is a complete operating system '
        'that is free.</p><h2 class="title">Preface</h2><p>Words that answer nothing, however many.</p>'
    )
    (record,) = convert("debian_faq_qa", unpack(tmp_path, "debian-faq", {"basic.en.html": page}))
    assert (record["prompt"], record["key"], record["lang"]) == ("1.2. What is Debian?", "1.2", "en")
    assert record["answer"] == "Debian is a complete operating system that is free."


@pytest.mark.parametrize("order", ["<", ">"])
def test_parallel_text_leaves_out_short_and_untranslated(tmp_path: Path, order: str) -> None:
    long = "A sentence that is long enough to be worth a translation."
    other = long + " And another one."
    messages = {f"context\x04{long}": "Ein Satz.", "short": "kurz", other: other}
    path = "usr/share/locale/de/LC_MESSAGES/wesnoth.mo"
    (record,) = convert("wesnoth_parallel", unpack(tmp_path, "wesnoth-1.16-data", {path: mo_file(messages, order)}))
    assert (record["en"], record["translation"], record["lang"]) == (long, "Ein Satz.", "de")
    assert record["text"] == f"en: {long}\nde: Ein Satz."


def test_help_pages_keep_the_lines_of_code(tmp_path: Path) -> None:
    page = "<page><info>no</info><title>A  title</title><p>One\n  line &amp; more.</p>"
    page += "<screen>a\n b</screen></page>"
    files = {
        "usr/share/help/C/gnome-help/a.page": page,
        "usr/share/help/fr/gnome-help/a.page": "<p>Une page</p>",
    }
    english, french = convert("gnome_help", unpack(tmp_path, "gnome-user-docs", files))
    assert english["text"] == "A title\n\nOne line & more.\n\na\n b"
    assert (english["lang"], english["key"]) == ("en", "gnome-help/a")
    assert (french["lang"], french["key"]) == ("fr", "gnome-help/a")


def test_handbook_by_chapter_and_by_book(tmp_path: Path) -> None:
    files = {f"h/{lang}/{page}.html": f"<p>{lang} {page}</p>" for lang in ("de", "fr") for page in ("a", "b")}
    cache = unpack(tmp_path, "debian-handbook", files)
    chapters, books = convert("debian_handbook_chapters", cache), convert("debian_handbook_books", cache)
    assert [(r["lang"], r["key"]) for r in chapters] == [("de", "a"), ("de", "b"), ("fr", "a"), ("fr", "b")]
    assert [(r["lang"], r["text"]) for r in books] == [("de", "de a\n\nde b"), ("fr", "fr a\n\nfr b")]


def test_novels_whole_and_by_chapter(tmp_path: Path) -> None:
    words = ["It was a truth."] * 800
    novel = ["EMMA", "", "Preface", "CHAPTER I", *words, "", "CHAPTER II", *words, "the end of CHAPTER II."]
    database = r_database([["too short"], novel])
    cache = unpack(tmp_path, "r-cran-janeaustenr", {"R/sysdata/Rdata.rdb": database})
    (whole,) = convert("jane_austen", cache)
    assert (whole["key"], whole["text"]) == ("Emma", "\n".join(novel))
    first, second = convert("jane_austen_chapters", cache)
    assert (first["key"], second["key"]) == ("Emma 1", "Emma 2")
    assert first["text"].startswith("EMMA\n\nPreface\nCHAPTER I\nIt")
    assert second["text"].startswith("CHAPTER II\nIt") and second["text"].endswith("end of CHAPTER II.\n")


def test_bible_through_its_reader(tmp_path: Path) -> None:
    text = r"\nGenesis 1\n\n  1 In the beginning.\n  2 And.\n\n1 John 1\n\n  1 That.\n"
    reader = f"#!/bin/sh\nprintf '{text}'\n"
    unpack(tmp_path, "bible-kjv", {"usr/bin/bible": reader})
    cache = unpack(tmp_path, "bible-kjv-text", {"usr/lib/bible.data": ""})
    with pytest.raises(CorporaError, match=r"does not run here.*libreadline8"):
        convert("kjv_bible", cache)
    (tmp_path / "tree/bible-kjv/usr/bin/bible").chmod(0o755)
    (whole,) = convert("kjv_bible", cache)
    assert whole["text"].startswith("Genesis 1\n\n  1 In")
    genesis, john = convert("kjv_bible_chapters", cache)
    assert (genesis["key"], genesis["text"]) == ("Genesis 1", "Genesis 1\n\n1 In the beginning.\n2 And.\n")
    assert (john["key"], john["text"]) == ("1 John 1", "1 John 1\n\n1 That.\n")


def test_spanish_bible_by_chapter(tmp_path: Path) -> None:
    def book(name: str, chapters: list[list[str]]) -> list[str]:
        entries = [f'<div type="book"/><title level="1" type="main">{name}</title>']
        for number, verses in enumerate(chapters, 1):
            entries += [f'<chapter n="{number}" osisID="X.{number}"/>', *verses]
        return entries

    old = [
        ["", '<milestone type="x-importer"/>'],
        book("Génesis", [["<w>EN el</w>  <w>principio</w>.", "Y."], ["Z."]]),
    ]
    new = [["<milestone/>"], book("San Mateo", [["LIBRO.", "", "Tres."]])]
    files = {f"m/{t}.{k}": v for t, blocks in (("ot", old), ("nt", new)) for k, v in sword_module(blocks).items()}
    records = convert("reina_valera_chapters", unpack(tmp_path, "sword-text-sparv", files))
    assert [r["text"] for r in records] == [
        "Génesis 1\n1 EN el principio.\n2 Y.\n",
        "Génesis 2\n1 Z.\n",
        "San Mateo 1\n1 LIBRO.\n3 Tres.\n",
    ]
    assert records[2]["key"] == "San Mateo 1"
    assert {r["lang"] for r in records} == {"es"}


def test_dictionary_articles_come_once(tmp_path: Path) -> None:
    articles = ["<b>abaisser</b> v.", "<b>zèle</b> s. m."]
    raw = [a.encode() for a in articles]
    index = b"abaisser\0" + struct.pack(">II", 0, len(raw[0])) + b"abaisse\0" + struct.pack(">II", 0, len(raw[0]))
    index += "zèle".encode() + b"\0" + struct.pack(">II", len(raw[0]), len(raw[1]))
    files = {"d/x.idx": index, "d/x.dict.dz": gzip.compress(b"".join(raw))}
    records = convert("littre_fr", unpack(tmp_path, "stardict-xmlittre", files))
    assert [r["text"] for r in records] == ["abaisser v.", "zèle s. m."]


def test_theorems_and_sections(tmp_path: Path) -> None:
    database = (
        "$( Head $)\n$c |- $.\n$(\n#*#*#\n  Logic\n#*#*#\n$)\nax-1 $a |- ps $.\n"
        "$( A theorem\n   of two lines. $)\nth1 $p |- ( ph\n -> ph ) $= ( a b )\n AB $.\n"
    )
    cache = unpack(tmp_path, "metamath-databases", {"usr/share/metamath/set.mm": database})
    (theorem,) = convert("metamath_theorems", cache)
    assert theorem["key"] == "th1"
    assert theorem["text"] == ("Theorem th1. A theorem of two lines.\nStatement: |- ( ph -> ph )\nProof: ( a b ) AB")
    head, section = convert("metamath_sections", cache)
    assert head["text"] + section["text"] == database


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorporaError, match=r"package metamath-databases holds no file named \*/set.mm"):
        convert("metamath_theorems", PackageCache(tmp_path))
