"""Makes the SVG that matplotlib writes fit for a page.

Text stays text in the page's font, ids get a prefix, metadata, dates and namespaces go, and every colour
becomes a CSS variable with a fallback (`var(--unified, #1f5fa8)`) or `currentColor`, so that one figure
serves light, dark and print. Matplotlib only knows fixed colours: figures are drawn in the stand-ins below,
and those are replaced here.
"""

import io
import re
import warnings
from xml.etree import ElementTree

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

INK, UNIFIED, SOUP, SINGLE, HEAT, ON_HEAT = (f"#01020{number}" for number in range(3, 9))
RC = {
    "svg.fonttype": "none",
    "svg.hashsalt": "collegium",
    "text.parse_math": False,  # a name may hold a dollar sign
    "text.color": INK,
    "font.size": 12,
}
_CSS = {
    INK: "currentColor",
    UNIFIED: "var(--unified, #1f5fa8)",
    SOUP: "var(--soup, #a85510)",
    SINGLE: "var(--single, #66717c)",
    HEAT: "var(--heat, #1d4f91)",
    ON_HEAT: "var(--on-heat, #ffffff)",
}
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


def inline_svg(figure: Figure, prefix: str, description: str) -> str:
    """An `<svg>` element of a figure that was drawn under `RC`.

    Args:
        prefix: starts every id, so that several figures fit on one page; no text of other people.
        description: what a screen reader says instead of the figure.
    """
    buffer = io.BytesIO()
    FigureCanvasSVG(figure)
    with warnings.catch_warnings():  # glyphs that matplotlib's own font lacks are drawn by the browser's
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*")
        figure.savefig(buffer, format="svg", transparent=True, metadata=_NO_METADATA)
    root = ElementTree.fromstring(buffer.getvalue())
    referenced = set(re.findall(r"#([A-Za-z_][\w-]*)", buffer.getvalue().decode()))
    for parent in list(root.iter()):
        parent.tail = None
        for child in list(parent):
            if child.tag.rpartition("}")[2] in ("metadata", "style", "title"):
                parent.remove(child)
            elif len(parent):
                parent.text = None
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        attributes = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
        if attributes.get("id") not in referenced:
            attributes.pop("id", None)
        element.attrib.clear()
        element.attrib.update({name: _attribute(name, value, prefix) for name, value in attributes.items()})
    _, _, width, height = root.attrib["viewBox"].split()
    root.attrib.clear()
    root.attrib.update(
        {"viewBox": f"0 0 {width} {height}", "width": width, "height": height, "role": "img"}
        | {"aria-label": description, "stroke-linejoin": "round"}
    )
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)


def _attribute(name: str, value: str, prefix: str) -> str:
    """Prefixed ids and references, CSS colours, and the page's font instead of matplotlib's."""
    if name == "id":
        return f"{prefix}-{value}"
    if name == "href" or "url(#" in value:
        return re.sub(r"#(?=[A-Za-z_])", f"#{prefix}-", value)
    if name == "style":
        for sentinel, css in _CSS.items():
            value = value.replace(sentinel, css)
        value = re.sub(r"font: (?:(\w+) )?([\d.]+px) [^;]*", r"font-size: \2; font-weight: \1", value)
        kept = [part.strip() for part in value.split(";") if not part.strip().startswith("font-family")]
        return "; ".join(part for part in kept if part and not part.endswith(":"))
    return value
