"""The page of explained texts and pictures: self-contained, and hostile tokens, texts and names stay text."""

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from collegium.core.errors import RunError
from collegium.data.images import picture_of
from collegium.evaluation.explain import Explanation, Grid, Step, Stretch, Token
from collegium.reports.explain_page import render_explanations, write_explanations
from tiny import draw

HOSTILE = "<script>alert(1)</script>[red]\x1b[31m\u202e\"' onload=x {{ 7*7 }}"
VOID = {"meta", "link"}


def explanation(text="old cow", owner="farm", pieces=("old", "cow")):
    tokens = [Token("[CLS]", True, False), *(Token(piece, False, False) for piece in pieces)]
    alone = [Step({2: 1.0})] * len(tokens)
    routed = [Step({0: 1.0}, 0.75, (1, 0.2)), *[Step({1: 0.625, 0: 0.375}, 0.5, (2, 0.125))] * len(pieces)]
    return Explanation(
        text, 7, [owner, "port", "seed"], tokens, [Stretch(0, 0, False, alone), Stretch(1, 5, True, routed)]
    )


def picture(name="cow.png", owner="farm"):
    """Two rows of three patches: farm, farm, port, and below it port, farm, seed."""
    experts = [1, 0, 0, 1, 1, 0, 2]
    tokens = [
        Token("[CLS]", True, False),
        *(Token(f"{row}·{column}", False, False) for row in (1, 2) for column in (1, 2, 3)),
    ]
    routed = [Step({expert: 1.0}, 0.75) for expert in experts]
    stretches = [Stretch(0, 0, False, [Step({2: 1.0})] * 7), Stretch(1, 5, True, routed)]
    return Explanation(name, 0, [owner, "port", "seed"], tokens, stretches, Grid(picture_of(draw("cow", 0)), 2, 3))


class Reader(HTMLParser):
    """Tags (which must match), attributes and text."""

    def __init__(self, page: str):
        super().__init__()
        self.open, self.tags, self.attributes, self.text, self.elements = [], [], [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_says_who_served_each_token_and_how_surely():
    reader = Reader(render_explanations([explanation()], "barn"))
    text = re.sub(r"\s+", " ", "".join(reader.text))
    for shown in (
        "barn", "layer 0: before the decision", "layers 1–5", "[CLS] old cowseed", "[CLS]farm", "old cowport",
        "port 66.7 %", "farm 33.3 %", "farm × 1.00probability 75.0 %, then port 20.0 %",
        "port × 0.62 farm × 0.38probability 50.0 %, then seed 12.5 %", "The last 7 characters",
    ):  # fmt: skip
        assert shown in text, shown
    widths = [value for name, value in reader.attributes if name == "style"]
    assert widths == ["--p:75.0%", "--p:50.0%", "--p:50.0%"]  # where no router chose, there is no line


def test_hostile_tokens_texts_owners_and_titles_stay_text():
    plain = Reader(render_explanations([explanation()], "barn"))
    reader = Reader(render_explanations([explanation(HOSTILE, HOSTILE, (HOSTILE, "cow"))], HOSTILE))
    assert (
        Reader(render_explanations([picture(HOSTILE, HOSTILE)], "barn")).tags
        == Reader(render_explanations([picture()], "barn")).tags
    )
    assert reader.tags == plain.tags
    assert reader.attributes == plain.attributes
    text = "".join(reader.text)
    # title twice, text once, the token in both stretches and in the table, the owner in legend, run and table
    assert text.count("<script>alert(1)</script>[red]\\x1b[31m\\u202e\"' onload=x {{ 7*7 }}") >= 2 + 1 + 3 + 3
    assert not {"\x1b", "\u202e"} & set(text)


def test_nothing_is_loaded_and_nothing_runs():
    page = render_explanations([explanation(), picture()], "barn")
    reader = Reader(page)
    assert not {"script", "img", "iframe", "object", "embed", "base", "form"} & set(reader.tags)
    loaded = [value for name, value in reader.attributes if name in ("src", "href", "srcset", "action")]
    assert all(value.startswith(("data:,", "data:image/png;", "#picture-")) for value in loaded)
    assert not re.search(r"https?:|@import|url\(", page)
    assert "default-src 'none'" in page


def test_a_picture_stands_once_under_the_bars_of_its_experts():
    page = render_explanations([explanation(), picture()], "barn")
    reader = Reader(page)
    sources = [
        (tag, attributes["href"]) for tag, attributes in reader.elements if "href" in attributes and tag != "link"
    ]
    data = f"data:image/png;base64,{base64.b64encode(picture_of(draw('cow', 0)).png).decode()}"
    assert sources == [("image", data), ("use", "#picture-2"), ("use", "#picture-2")]
    bars = [
        tuple(float(attributes[name]) for name in ("x", "y", "width"))
        for tag, attributes in reader.elements
        if tag == "rect"
    ]
    assert bars == [(0, 0, 3), (0, 1, 3), (0, 0, 2), (2, 0, 1), (0, 1, 1), (1, 1, 1), (2, 1, 1)]
    text = re.sub(r"\s+", " ", "".join(reader.text))
    for shown in (
        "what the model sees, 2 × 3 patches", "layer 0: before the decision [CLS] · seed",
        "layers 1–5 [CLS] B port", "ABBA·", "patches 1·1 to 1·2", "farm × 1.00", "A farm 42.9 %", "B port 42.9 %",
    ):  # fmt: skip
        assert shown in text, shown
    assert "Each run of tokens" in text
    assert "Each run of tokens" not in render_explanations([picture()], "barn")
    assert "what the model sees" not in render_explanations([explanation()], "barn")


def test_a_warm_up_is_said():
    warm = replace(explanation(), warmup=7)
    assert "the first 7 tokens take the seed" in render_explanations([warm], "barn")
    assert "Warm-up" not in render_explanations([explanation()], "barn")


def test_lone_surrogates_and_many_owners_can_be_written(tmp_path):
    names = [f"owner-{index}" for index in range(20)]
    token = Token("\ud800", False, False)
    many = Explanation(
        "\udfff", 0, [*names, "seed"], [token] * 20, [Stretch(0, 5, True, [Step({i: 1.0}, 0.5) for i in range(20)])]
    )
    page = write_explanations([many], "barn", tmp_path / "pages" / "page.html").read_text(encoding="utf-8")
    assert "\\ud800" in page
    assert all(f"<b><bdi>{name}</bdi></b>" in page for name in names)


def test_a_page_that_cannot_be_written_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="could not be written"):
        write_explanations([explanation()], "barn", tmp_path / "file" / "page.html")
