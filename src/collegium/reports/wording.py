"""How names and numbers are written, the same in the terminal and on the page.

Names of owners, labels and data sets come from other people. `clean` makes every character that is not text
visible (`\\x1b` for an escape), so that a name can neither steer a terminal nor reorder the line around it.
Markup is the business of whoever prints: Rich gets `Text` objects, the page is autoescaped.
"""

import math
import unicodedata
from dataclasses import dataclass

from collegium.reports.reading import RunSummary

_METHODS = {"seed": "seed model", "soup": "soup", "unified": "unified", "oracle": "oracle"}
_JOINERS = "\u200c\u200d"  # format characters that Persian, Indic scripts and emoji need
NOTHING = "–"


@dataclass(frozen=True)
class Interval:
    """A confidence interval; both ends are fractions."""

    low: float
    high: float


def clean(text: object, keep_lines: bool = False) -> str:
    """The text with control, format, surrogate and line-separating characters written as escapes.

    >>> clean("a\\x1b[31m")
    'a\\\\x1b[31m'
    """
    return "".join(
        character if (keep_lines and character == "\n") or not _is_hidden(character) else _escape(character)
        for character in str(text)
    )


def shorten(text: object, length: int) -> str:
    """The cleaned text, cut to at most `length` characters with an ellipsis."""
    cleaned = clean(text)
    return cleaned if len(cleaned) <= length else cleaned[: length - 1].rstrip() + "…"


def method_name(method: str) -> str:
    """`expert:cinema` becomes `expert of cinema`; unknown methods keep their name."""
    kind, separator, owner = method.partition(":")
    if kind == "expert" and separator:
        return f"expert of {clean(owner)}"
    return _METHODS.get(method, clean(method))


def percent(fraction: int | float | None) -> str:
    """One decimal, without the sign: `85.6`."""
    return NOTHING if fraction is None else f"{100 * fraction:.1f}"


def cosine(value: float | None) -> str:
    """Two decimals: `0.31`."""
    return NOTHING if value is None else f"{value:.2f}"


def human_bytes(size: int | float | None) -> str:
    """Decimal units: `29.9 MB`."""
    if size is None:
        return NOTHING
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < (1000 if unit == "bytes" else 999.95):
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def human_seconds(seconds: int | float | None) -> str:
    """`12.1 s`, `3 min 05 s`, `1 h 02 min`."""
    if seconds is None:
        return NOTHING
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def epsilon(value: str | int | float) -> str:
    """`∞` where no mechanism bounds what leaks."""
    if isinstance(value, float | int):
        return "∞" if math.isinf(value) else f"{value:g}"
    return "∞" if value.strip().lower() in ("inf", "infinity", "infinite") else clean(value)


def interval(summary: RunSummary, method: str, labels: str, domain: str) -> Interval | None:
    """95 % interval of an accuracy, where the summary has it."""
    ends = summary.intervals.get(method, {}).get(labels, {}).get(domain)
    return Interval(*ends) if ends else None


def headline(summary: RunSummary) -> str:
    """One sentence: the unified model beside oracle, soup and best single expert, in the union of labels."""
    if summary.perplexity:
        return _perplexity_headline(summary)
    unified = summary.mean("unified", "union")
    experts = {name: summary.mean(name, "union") for name in summary.accuracy if name.startswith("expert:")}
    measured = {name: value for name, value in experts.items() if value is not None}
    others = []
    if (oracle := summary.mean("oracle", "union")) is not None:
        others.append(f"an oracle that gives each example to its own domain’s expert reaches {percent(oracle)} %")
    if (soup := summary.mean("soup", "union")) is not None:
        others.append(f"the average of the experts’ weights (soup) {percent(soup)} %")
    if measured:
        best = max(measured, key=lambda name: measured[name])
        others.append(f"the best single expert ({clean(best.partition(':')[2])}) {percent(measured[best])} %")
    if unified is None:
        start = "This run has no accuracy of a unified model with the labels of all owners competing"
    else:
        start = (
            "With the labels of all owners competing, the unified model answers "
            f"{percent(unified)} % of the test examples correctly"
        )
    if len(others) > 1:
        others = [", ".join(others[:-1]) + f" and {others[-1]}"]
    return "; ".join([start, *others]) + "."


def best_methods(summary: RunSummary, labels: str, domain: str) -> set[str]:
    """The methods with the highest accuracy in a domain (or `mean`), the oracle left out."""
    values = {
        method: summary.mean(method, labels) if domain == "mean" else summary.by_domain(method, labels).get(domain)
        for method in summary.accuracy
        if method != "oracle"
    }
    best = max((value for value in values.values() if value is not None), default=None)
    return {method for method, value in values.items() if value is not None and value == best}


def lowest_methods(summary: RunSummary, domain: str) -> set[str]:
    """The methods with the lowest perplexity in a domain (or `mean`), the oracle left out."""
    values = {name: found[domain] for name, found in summary.perplexity.items() if name != "oracle" and domain in found}
    return {name for name, value in values.items() if value == min(values.values())}


def perplexity(value: float | None) -> str:
    """Three figures or more: 7.42, 31.5, 1,204."""
    if value is None:
        return NOTHING
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _perplexity_headline(summary: RunSummary) -> str:
    means = {name: found.get("mean") for name, found in summary.perplexity.items()}
    parts = [f"the unified model’s perplexity is {perplexity(means.get('unified'))} (geometric mean over domains)"]
    for name, words in (("oracle", "the oracle’s"), ("soup", "the soup’s"), ("seed", "the seed’s")):
        if means.get(name) is not None:
            parts.append(f"{words} {perplexity(means[name])}")
    sentence = "; ".join(parts)
    return sentence[0].upper() + sentence[1:] + "."


def _is_hidden(character: str) -> bool:
    category = unicodedata.category(character)
    never_a_character = ord(character) & 0xFFFE == 0xFFFE  # U+FFFE and U+FFFF of every plane
    hidden = category in ("Cc", "Cs", "Zl", "Zp") or (category == "Cf" and character not in _JOINERS)
    return hidden or never_a_character


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")
