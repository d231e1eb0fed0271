"""Settings of the documentation: sphinx-build -W -b html docs DIR. Needs no network, and no file of the site does."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util.docutils import SphinxDirective

import implicitq

project = "implicitq"
author = "The implicitq developers"
project_copyright = author
release = version = implicitq.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4  # so that links to page.md#a-heading work as on any Git server

html_theme = "furo"
html_title = "implicitq"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
pygments_style, pygments_dark_style = "friendly", "monokai"
copybutton_exclude = ".linenos, .gp, .go"

default_role = "code"  # docstrings have single backticks, as the pages have
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
autodoc_type_aliases = {"AnyListener": "AnyListener", "EnvironmentSource": "EnvironmentSource"}
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

# Pages of the site that show a file from outside of docs/. On a Git server the links to these files work as they are.
_OUTSIDE = {
    "../README.md": "index.md",
    "../SECURITY.md": "project.md#security",
    "../CHANGELOG.md": "project.md#changelog",
    "../CONTRIBUTING.md": "project.md#contributing",
    "../benchmarks/README.md": "benchmarks.md",
}


def _inside(text: str) -> str:
    """Links to files outside of docs/ as links to the pages that show them."""
    for path, page in _OUTSIDE.items():
        text = re.sub(rf"\]\({re.escape(path)}(?=[#)])", f"]({page}", text)
    return text.replace("](../docs/", "](").replace("](docs/", "](")  # of included files


def _formula(tex: str, block: bool) -> str:
    """TeX as MathML. Bars over letters are borders: as accents they hit the letter where no mathematical font is."""
    bar = r'\s*<mo stretchy="false">ˉ</mo>\s*'
    text = tex2mathml(tex, as_block=block)
    text = re.sub(rf'<mover accent="true">\s*(.*?){bar}</mover>', r'<mrow class="bar">\1</mrow>', text)
    under = rf"<munderover>\s*(<mi>.*?</mi>)\s*(<mi>.*?</mi>){bar}</munderover>"
    return re.sub(under, r'<msub><mrow class="bar">\1</mrow>\2</msub>', text)


def _visit_math(self: Any, node: nodes.math) -> None:
    self.body.append(_formula(node.astext(), block=False))
    raise nodes.SkipNode


def _visit_display(self: Any, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math">{_formula(node.astext(), block=True)}</div>')
    raise nodes.SkipNode


class Fields(SphinxDirective):
    """A table of the fields that a dataclass adds to the one it inherits from: name, default, help text."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module, name = self.arguments[0].rsplit(".", 1)
        described = getattr(importlib.import_module(module), name)
        comments = _comments(inspect.getsource(described))
        fields = [field for field in dataclasses.fields(described) if field.name in comments]
        with_default = any(field.default is not dataclasses.MISSING for field in fields)
        titles = ["name", "default", "meaning"] if with_default else ["name", "meaning"]
        rows = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
        for field in fields:
            default = f"{_shown(field.default)} | " if with_default else ""
            rows.append(f"| `{field.name}` | {default}{comments[field.name]} |")
        return self.parse_text_to_nodes("\n".join(rows))


def _shown(value: Any) -> str:
    if value is dataclasses.MISSING:
        return ""
    return f"`{' '.join(map(str, value)) if isinstance(value, tuple) else value}`"


def _comments(source: str) -> dict[str, str]:
    """Field -> the help text of its flag: the comment at the end of its line, or the string below it."""
    found = re.findall(r'^    (\w+): .*?(?:  # (.+)|\n    """([^"]+)""")$', source, re.MULTILINE)
    return {name: " ".join((comment or text).split()).replace("|", "\\|") for name, comment, text in found}


def _plain_aliases(app: Any, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: Any) -> Any:
    """Names of type aliases as they are, where autodoc wraps them."""
    return None if signature is None else (re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", signature), returns)


def setup(app: Any) -> None:
    app.add_html_math_renderer("mathml", (_visit_math, None), (_visit_display, None))
    app.add_directive("fields", Fields)
    app.connect("autodoc-process-signature", _plain_aliases)
    app.connect("source-read", lambda app, docname, source: source.__setitem__(0, _inside(source[0])))
    app.connect("include-read", lambda app, path, docname, source: source.__setitem__(0, _inside(source[0])))


html_math_renderer = "mathml"  # formulas as MathML: browsers show it by themselves, without a script from elsewhere
